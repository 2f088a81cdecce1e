"""Reads the host keys that SSH servers present and compares them with expected ones."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import paramiko

from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import CONNECT_S, CONNECTION_ERRORS, SSH, HostKeyMismatch, Unreachable

_PAUSE_S = 0.5


def prove(address: str, host_keys: tuple[str, ...], port: int = 22, timeout: float = 30.0) -> None:
    """Wait until SSH answers, and check that it presents one of these keys.

    Raises `Unreachable` if SSH does not answer within `timeout` seconds, `HostKeyMismatch` if the
    server presents another key.
    """
    kinds = {key.split()[0] for key in host_keys}
    # An `ssh-rsa` key is also used with the newer SHA-2 signature algorithms.
    kinds |= {"rsa-sha2-512", "rsa-sha2-256"} if "ssh-rsa" in kinds else set()
    try:
        # A server has several keys; ask only for the types that can be compared.
        key = _asked(lambda: socket.create_connection((address, port), CONNECT_S), timeout, kinds)
    except CONNECTION_ERRORS as error:
        why = f"{address}:{port} does not answer SSH: {error or type(error).__name__}"
        raise Unreachable(why) from None
    if key not in host_keys:
        raise HostKeyMismatch(f"{address}:{port}", host_keys, key)


def presented(node: Node, paths: ClusterPaths, timeout: float = 30.0) -> str:
    """Return the host key that a node presents, through its hops, without checking it.

    Raises `Unreachable` if the node does not answer within `timeout` seconds.
    """
    with SSH(node, paths) as ssh:

        def dial() -> socket.socket | paramiko.Channel:
            ssh.close()
            return ssh.dial()

        try:
            return _asked(dial, timeout)
        except CONNECTION_ERRORS as error:
            raise ssh.unreachable(error) from None


def _asked(
    dial: Callable[[], socket.socket | paramiko.Channel],
    timeout: float,
    kinds: set[str] | None = None,
) -> str:
    deadline = time.monotonic() + timeout
    while True:
        try:
            return _greet(dial(), kinds)
        except CONNECTION_ERRORS:
            if time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)


def _greet(connection: socket.socket | paramiko.Channel, kinds: set[str] | None) -> str:
    with connection:
        transport = paramiko.Transport(connection)
        try:
            if kinds is not None:
                options = transport.get_security_options()
                options.key_types = [t for t in options.key_types if t in kinds]
            transport.start_client(timeout=CONNECT_S)
            key = transport.get_remote_server_key()
        finally:
            transport.close()
    return f"{key.get_name()} {key.get_base64()}"

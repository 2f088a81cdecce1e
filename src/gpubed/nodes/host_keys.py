"""The host keys that an SSH server presents: looked at, and compared with a node's own."""

from __future__ import annotations

import socket
import time

import paramiko

from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import CONNECT_S, CONNECTION_ERRORS, SSH, HostKeyMismatch, Unreachable

_PAUSE_S = 0.5


def prove(address: str, host_keys: tuple[str, ...], port: int = 22, timeout: float = 30.0) -> None:
    """Wait until SSH answers, and check that it does so with one of these keys.

    Raises:
        Unreachable: Nothing answers within `timeout` seconds.
        HostKeyMismatch: It answers with another key.
    """
    deadline = time.monotonic() + timeout
    while True:
        try:
            connection = socket.create_connection((address, port), CONNECT_S)
            # A server has several keys; ask for the kinds that we can compare.
            key = _greet(connection, _kinds(host_keys))
            break
        except CONNECTION_ERRORS as error:
            if time.monotonic() > deadline:
                why = f"{address}:{port} does not answer SSH: {error or type(error).__name__}"
                raise Unreachable(why) from None
        time.sleep(_PAUSE_S)
    if key not in host_keys:
        raise HostKeyMismatch(f"{address}:{port}", host_keys, key)


def presented(node: Node, paths: ClusterPaths, timeout: float = 30.0) -> str:
    """Return the host key with which a node answers, through its hops; it proves nothing yet.

    Raises:
        Unreachable: Nothing answers within `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    with SSH(node, paths) as ssh:
        while True:
            try:
                return _greet(ssh.dial(), None)
            except CONNECTION_ERRORS as error:
                ssh.close()
                if time.monotonic() > deadline:
                    raise ssh.unreachable(error) from None
            time.sleep(_PAUSE_S)


def _greet(connection: socket.socket | paramiko.Channel, kinds: set[str] | None) -> str:
    """Return the host key of whoever is at the other end, and close the connection."""
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


def _kinds(host_keys: tuple[str, ...]) -> set[str]:
    kinds = {key.split()[0] for key in host_keys}
    # An RSA key signs in newer ways than its name tells.
    return kinds | ({"rsa-sha2-512", "rsa-sha2-256"} if "ssh-rsa" in kinds else set())

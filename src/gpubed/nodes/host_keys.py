"""Reads the host keys that SSH servers present, and those that the user's `known_hosts` trusts.

`ssh-keygen -F` parses the format (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT). `@cert-authority` lines
are skipped, because an authority's key is not a host key.
"""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko

from gpubed.core import reading
from gpubed.core.errors import PrerequisiteMissing
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Node, known_as
from gpubed.nodes.ssh import CONNECT_S, CONNECTION_ERRORS, SSH, HostKeyMismatch, Unreachable

_PAUSE_S = 0.5
_LARGEST = 2**24  # bytes of known_hosts


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
        key = _wait(lambda: socket.create_connection((address, port), CONNECT_S), timeout, kinds)
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
            return _wait(dial, timeout)
        except CONNECTION_ERRORS as error:
            raise ssh.unreachable(error) from None


def _wait(
    dial: Callable[[], socket.socket | paramiko.Channel],
    timeout: float,
    kinds: set[str] | None = None,
) -> str:
    deadline = time.monotonic() + timeout
    while True:
        try:
            return _host_key(dial(), kinds)
        except CONNECTION_ERRORS:
            if time.monotonic() > deadline:
                raise
        time.sleep(_PAUSE_S)


def _host_key(connection: socket.socket | paramiko.Channel, kinds: set[str] | None) -> str:
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


def keys(path: Path, address: str, port: int = 22) -> tuple[str, ...]:
    """Return the host keys (`type base64`) of an address, at most one of each type.

    Keys that are revoked for the address are left out, even if another line lists them. Raises
    `Unreadable` if the file is missing or cannot be read.
    """
    bad, good = revoked(path, address, port), dict[str, str]()
    for marker, kind, key in _lines(path, known_as(address, port)):
        if not marker and key not in bad:
            good.setdefault(kind, key)
    return tuple(f"{kind} {key}" for kind, key in good.items())


def revoked(path: Path, address: str, port: int = 22) -> frozenset[str]:
    """Return the keys (base64) of any type that are revoked for an address or its host."""
    lines = (line for name in {known_as(address, port), address} for line in _lines(path, name))
    return frozenset(key for marker, _, key in lines if marker == "@revoked")


def _lines(path: Path, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield marker, type and key of each line about a host."""
    reading.file(path, limit=_LARGEST)
    command = ["ssh-keygen", "-F", name.lower(), "-f", str(path.absolute())]
    try:
        output = subprocess.run(command, capture_output=True, check=False).stdout
    except FileNotFoundError:
        hint = "apt-get install openssh-client"
        raise PrerequisiteMissing("there is no ssh-keygen", hint) from None
    for line in output.decode(errors="replace").splitlines():
        fields = line.split()
        marker = fields.pop(0) if fields[:1] and fields[0].startswith("@") else ""
        if len(fields) >= 3 and not fields[0].startswith("#"):
            yield marker, fields[1], fields[2]

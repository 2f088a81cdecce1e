"""The user's own `known_hosts`: which host keys OpenSSH trusts for an address, and which never.

Read as in sshd(8), SSH_KNOWN_HOSTS FILE FORMAT. Certificates are deliberately absent: an
authority (`@cert-authority`) signs host keys and is none.
"""

from __future__ import annotations

import binascii
import hmac
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import paramiko
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from gpubed.core import reading

_LARGEST = 2**24  # bytes
_HASHED = "|1|"
_REVOKED = "@revoked"


@dataclass(frozen=True)
class _Line:
    """A line of the file: its marker, which may be empty, its hosts, and type and key as text."""

    marker: str
    hosts: tuple[str, ...]
    kind: str
    key: str

    def is_about(self, name: str) -> bool:
        """Say whether a name is among the hosts; one that is excluded is not, whatever else."""
        no = (host.removeprefix("!") for host in self.hosts if host.startswith("!"))
        return any(_stands_for(host, name) for host in self.hosts) and not any(
            _stands_for(host, name) for host in no
        )


def keys(path: Path, address: str, port: int = 22) -> tuple[str, ...]:
    """Return the host keys (`type base64`) of an address, one of each type; may be none.

    A key that is revoked for the address is not among them, whichever line also has it.

    Raises:
        Unreadable: The file is missing or cannot be read.
    """
    name, never = known_as(address, port).lower(), revoked(path, address, port)
    found: dict[str, str] = {}
    for line in _lines(path):
        if not line.marker and line.is_about(name):
            for key in _key(line):
                if key.get_base64() not in never:
                    found.setdefault(key.get_name(), key.get_base64())
    return tuple(f"{kind} {key}" for kind, key in found.items())


def revoked(path: Path, address: str, port: int = 22) -> frozenset[str]:
    """Return the keys (base64) that are never accepted of an address, whatever their type.

    Those that are revoked for the host without its port count, too.

    Raises:
        Unreadable: The file is missing or cannot be read.
    """
    names = {known_as(address, port).lower(), address.lower()}
    return frozenset(
        _normal(line.key)
        for line in _lines(path)
        if line.marker == _REVOKED and any(line.is_about(name) for name in names)
    )


def known_as(address: str, port: int) -> str:
    """Return an address as OpenSSH writes it down."""
    return address if port == 22 else f"[{address}]:{port}"


def _lines(path: Path) -> Iterator[_Line]:
    # Comments may be in whatever encoding.
    text = reading.file(path, limit=_LARGEST).data.decode(errors="replace")
    for line in text.splitlines():
        fields = line.split()
        marker = fields.pop(0) if fields and fields[0].startswith("@") else ""
        if len(fields) >= 3 and not fields[0].startswith("#"):
            yield _Line(marker, tuple(fields[0].split(",")), fields[1], fields[2])


def _stands_for(written: str, name: str) -> bool:
    """Say whether a name in the file, which may be hashed or a pattern, is this one."""
    if not written.startswith(_HASHED):
        return _matches(written.lower(), name)
    try:
        salt, digest = map(b64decode, written.removeprefix(_HASHED).split("|"))
    except ValueError:
        return False
    return hmac.digest(salt, name.encode(), "sha1") == digest


def _matches(pattern: str, name: str) -> bool:
    """Say whether a pattern stands for a name; brackets in it are those around an address.

    Of a pattern's signs OpenSSH knows two. What is between stars is looked for from the left,
    once: to try every way of sharing a name among many stars would never end.
    """
    first, *parts = pattern.split("*")
    if not parts:
        return len(name) == len(first) and _begins(name, 0, first)
    *parts, last = parts
    at, end = len(first), len(name) - len(last)
    if at > end or not (_begins(name, 0, first) and _begins(name, end, last)):
        return False
    for part in parts:
        places = range(at, end - len(part) + 1)
        found = next((place for place in places if _begins(name, place, part)), None)
        if found is None:
            return False
        at = found + len(part)
    return True


def _begins(name: str, at: int, part: str) -> bool:
    """Say whether a part of a pattern, without stars, stands for the name from a place on."""
    there = name[at : at + len(part)]
    return len(there) == len(part) and all(
        sign in ("?", found) for sign, found in zip(part, there, strict=True)
    )


def _normal(key: str) -> str:
    """Return a key as paramiko writes it; what is none stays as it is."""
    try:
        return b64encode(b64decode(key)).decode()
    except (ValueError, binascii.Error):
        return key


def _key(line: _Line) -> Iterator[paramiko.PKey]:
    """Yield the key of a line, if it is one that can be used."""
    with suppress(ValueError, InvalidHostKey, paramiko.SSHException):
        if entry := HostKeyEntry.from_line(f"{line.hosts[0]} {line.kind} {line.key}"):
            yield entry.key

"""The user's own `known_hosts`: which host keys OpenSSH trusts for an address."""

from __future__ import annotations

import hmac
from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import paramiko
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from gpubed import reading

_LARGEST = 2**24  # bytes
_HASHED = "|1|"


def keys(path: Path, address: str, port: int = 22) -> tuple[str, ...]:
    """Return the host keys (`type base64`) of an address, one of each type; may be none.

    Raises:
        Unreadable: The file is missing or cannot be read.
    """
    name = known_as(address, port)
    # Comments may be in whatever encoding.
    lines = reading.file(path, limit=_LARGEST).data.decode(errors="replace").splitlines()
    found: dict[str, str] = {}
    for line in lines:
        names = line.partition(" ")[0].split(",")
        if any(_stands_for(one, name) for one in names):
            for key in _key(line):
                found.setdefault(key.get_name(), key.get_base64())
    return tuple(f"{kind} {key}" for kind, key in found.items())


def known_as(address: str, port: int) -> str:
    """Return an address as OpenSSH writes it down."""
    return address if port == 22 else f"[{address}]:{port}"


def _stands_for(written: str, name: str) -> bool:
    """Say whether a name in the file, which may be hashed, is this one."""
    if not written.startswith(_HASHED):
        return written == name
    try:
        salt, digest = map(b64decode, written.removeprefix(_HASHED).split("|"))
    except ValueError:
        return False
    return hmac.digest(salt, name.encode(), "sha1") == digest


def _key(line: str) -> Iterator[paramiko.PKey]:
    """Yield the key of a line, if it is one that can be used."""
    with suppress(ValueError, InvalidHostKey, paramiko.SSHException):
        if entry := HostKeyEntry.from_line(line):
            yield entry.key

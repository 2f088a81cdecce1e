"""Looks up trusted and revoked host keys in the user's own `known_hosts`.

`ssh-keygen -F` parses the format (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT). `@cert-authority` lines
are skipped, because an authority's key is not a host key.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

from gpubed.core import reading
from gpubed.core.errors import PrerequisiteMissing

_LARGEST = 2**24  # bytes


def keys(path: Path, address: str, port: int = 22) -> tuple[str, ...]:
    """Return the host keys (`type base64`) of an address, at most one of each type.

    Keys that are revoked for the address are left out, even if another line lists them. Raises
    `Unreadable` if the file is missing or cannot be read.
    """
    never, found = revoked(path, address, port), dict[str, str]()
    for marker, kind, key in _lines(path, known_as(address, port)):
        if not marker and key not in never:
            found.setdefault(kind, key)
    return tuple(f"{kind} {key}" for kind, key in found.items())


def revoked(path: Path, address: str, port: int = 22) -> frozenset[str]:
    """Return the keys (base64) of any type that are revoked for an address or its host."""
    lines = (line for name in {known_as(address, port), address} for line in _lines(path, name))
    return frozenset(key for marker, _, key in lines if marker == "@revoked")


def known_as(address: str, port: int) -> str:
    """Return an address as OpenSSH writes it in `known_hosts`."""
    return address if port == 22 else f"[{address}]:{port}"


def _lines(path: Path, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield marker, type and key of each line about a host."""
    reading.file(path, limit=_LARGEST)
    ask = ["ssh-keygen", "-F", name.lower(), "-f", str(path.absolute())]
    try:
        said = subprocess.run(ask, capture_output=True, check=False).stdout
    except FileNotFoundError:
        hint = "apt-get install openssh-client"
        raise PrerequisiteMissing("there is no ssh-keygen", hint) from None
    for line in said.decode(errors="replace").splitlines():
        fields = line.split()
        marker = fields.pop(0) if fields[:1] and fields[0].startswith("@") else ""
        if len(fields) >= 3 and not fields[0].startswith("#"):
            yield marker, fields[1], fields[2]

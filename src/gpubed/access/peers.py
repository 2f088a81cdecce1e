"""Whose process is at the other end of a connection on loopback, which all users here share."""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path
from socket import inet_aton

from gpubed.access import browser

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_IN_IPV6 = bytes(10) + b"\xff\xff"
_OWNERLESS = "0"  # of a socket that its process has left, which counts as root's otherwise

End = tuple[str, int]


def stranger(there: End, here: End) -> str:
    """Return who, if it is somebody else, holds the other end of a connection.

    Whoever became another user by sudo to start us counts as us.

    Args:
        there: IPv4 address and port of the other end.
        here: Those of our end.

    Returns:
        A name for people; empty if it is us, or where the system does not tell: macOS, and
        Linux within Windows, whose browser is outside.
    """
    if browser.of_windows() or not _TABLES[0].exists():
        return ""
    uid = _owner(there, here)
    if uid is None:
        return "somebody who is gone"
    started_by = os.environ.get("SUDO_UID", "")
    if uid == os.getuid() or str(uid) == started_by:
        return ""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


def _owner(there: End, here: End) -> int | None:
    # A program may speak IPv4 through a socket of IPv6.
    ends = {(_written(there, before), _written(here, before)) for before in (b"", _IN_IPV6)}
    for table in _TABLES:
        for line in table.read_text().splitlines() if table.exists() else ():
            _, local, remote, _, _, _, _, uid, _, inode, *_ = line.split()
            if (local, remote) in ends and inode != _OWNERLESS:
                return int(uid)
    return None


def _written(end: End, before: bytes) -> str:
    """Write address and port as the kernel does: words of 32 bits in this machine's order."""
    address = before + inet_aton(end[0])
    words = [address[at : at + 4] for at in range(0, len(address), 4)]
    written = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{written}:{end[1]:04X}"

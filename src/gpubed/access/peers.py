"""Finds the user at the other end of a connection on loopback, which all users here share."""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path
from socket import inet_aton

from gpubed.access import browser

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_IN_IPV6 = bytes(10) + b"\xff\xff"
_OWNERLESS = "0"  # inode of a socket without a process, whose user is given as root

End = tuple[str, int]


def stranger(there: End, here: End) -> str:
    """Return the user at the other end of a connection, unless it is this user.

    The user who started this process with sudo counts as this user.

    Args:
        there: IPv4 address and port of the other end.
        here: Those of our end.

    Returns:
        A name for people; empty for this user, and on systems that do not tell: macOS, and Linux
        within Windows, whose browser is outside.
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
    # A program may use an IPv6 socket for IPv4.
    ends = {(_written(there, before), _written(here, before)) for before in (b"", _IN_IPV6)}
    for table in _TABLES:
        for line in table.read_text().splitlines() if table.exists() else ():
            _, local, remote, _, _, _, _, uid, _, inode, *_ = line.split()
            if (local, remote) in ends and inode != _OWNERLESS:
                return int(uid)
    return None


def _written(end: End, before: bytes) -> str:
    """Format address and port as the kernel does: 32-bit words in this machine's byte order."""
    address = before + inet_aton(end[0])
    words = [address[at : at + 4] for at in range(0, len(address), 4)]
    written = "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
    return f"{written}:{end[1]:04X}"

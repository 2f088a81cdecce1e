"""Names of checkpoint folders: one spelling for each, which its lock is named after."""

from __future__ import annotations

from pathlib import PurePosixPath
from urllib.parse import quote, unquote

_LONGEST = 255  # bytes of a file's name, here and on nodes


def fault(name: str) -> str:
    """Return why a text names no folder below `checkpoints/`; empty if it names one."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return f"{name!r} leads out of the folder of checkpoints"
    if not path.parts:
        return f"{name!r} is the folder of all checkpoints, and none in it"
    if (length := len(lock_name(name))) > _LONGEST:
        return f"its name is too long: {length} bytes, as URLs write it, of {_LONGEST} at most"
    return ""


def plain(name: str) -> str:
    """Return the one spelling of a name: `c1` for `./c1`, `c1/` and `c1/.`."""
    return str(PurePosixPath(name))


def lock_name(name: str) -> str:
    """Return the name of the lock that the folder's writer holds."""
    return quote(plain(name), safe="")


def of_lock(name: str) -> str:
    """Return the folder whose lock has that name."""
    return unquote(name)

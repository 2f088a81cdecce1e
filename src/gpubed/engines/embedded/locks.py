"""The file backend's stack locks, as the CLI writes them."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import socket
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote

from pydantic import BaseModel, ConfigDict, PositiveInt

from gpubed.core import reading
from gpubed.core.errors import Locked, unwritable
from gpubed.core.reading import Unreadable


class _Holder(BaseModel):
    """Who holds a lock, as the lock says."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    pid: PositiveInt
    username: str
    hostname: str
    timestamp: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} of {self.username} on {self.hostname} since {self.timestamp}"


@contextlib.contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Holds the stack's lock.

    Check, write, check again: two runs that start together both see the other
    and both give way, which is how the CLI does it.

    Args:
        folder: The stack's lock folder.

    Raises:
        Locked: Another run holds the stack.
        GpubedError: The lock cannot be written.
    """
    require_free(folder)
    own = folder / f"{uuid.uuid4()}.json"
    _write(own)
    try:
        require_free(folder, own)
        yield
    finally:
        own.unlink(missing_ok=True)


def _write(path: Path) -> None:
    holder = {
        "pid": os.getpid(),
        "username": _user(),
        "hostname": socket.gethostname(),
        "timestamp": datetime.now(UTC).isoformat().replace("+00:00", "Z"),
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(holder), encoding="utf-8")
    except OSError as error:
        # A full disk leaves an empty file.
        with contextlib.suppress(OSError):
            path.unlink()
        raise unwritable(error, path) from error


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def require_free(folder: Path, own: Path | None = None) -> None:
    """Clears the locks of processes that are gone, and looks whether another is left.

    Raises:
        Locked: Another run holds the stack.
    """
    for path in sorted(folder.glob("*.json")):
        if path == own:
            continue
        holder = _read(path)
        if holder and _is_dead(holder):
            path.unlink(missing_ok=True)
            continue
        raise Locked(
            f"the stack is locked by {holder or 'somebody whose lock cannot be read'}",
            f"wait for it; if it is gone: rm {quote(str(path))}",
        )


def _read(path: Path) -> _Holder | None:
    try:
        return reading.file(path).json(_Holder)
    except Unreadable:
        return None


def _is_dead(holder: _Holder) -> bool:
    if holder.hostname != socket.gethostname():
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return _has_ended(holder.pid)


def _has_ended(pid: int) -> bool:
    """Say whether a process is only waiting for its parent to notice; it has no memory then."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/statm").read_text(encoding="ascii").startswith("0 ")
    return False

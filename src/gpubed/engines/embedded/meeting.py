"""The folder where a run's processes meet: their sockets, which only this user may reach.

It is in the machine's folder for such, since a socket's path has at most 107 bytes (unix(7)),
which a project's may have already. What a run left that was killed, the next one removes.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

ENGINE, PROVIDER = "engine", "provider"
_PREFIX = "gpubed-"
_SOCKETS = {ENGINE, PROVIDER}
_OLD_S = 600.0  # a younger one may not be locked yet


@contextmanager
def folder() -> Iterator[Path]:
    """Give a new one, which is locked for as long as it is needed, and removed then."""
    _sweep(Path(tempfile.gettempdir()))
    made = Path(tempfile.mkdtemp(prefix=_PREFIX))  # mode 0700
    lock = os.open(made, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield made
    finally:
        os.close(lock)
        _remove(made)


def _sweep(place: Path) -> None:
    """Remove what killed runs have left; whatever else is there is none of ours."""
    for path in place.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another run does the same
            if _is_left(path):
                _remove(path)


def _is_left(path: Path) -> bool:
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        return False
    if stat.S_IMODE(found.st_mode) != 0o700 or time.time() - found.st_mtime < _OLD_S:
        return False
    sockets = list(path.iterdir())
    if any(one.name not in _SOCKETS or not one.is_socket() for one in sockets):
        return False
    return not _is_locked(path) and not any(map(_answers, sockets))


def _is_locked(path: Path) -> bool:
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _answers(path: Path) -> bool:
    """Say whether a process listens, as one whose run was killed may, or one of a former gpubed."""
    with socket.socket(socket.AF_UNIX) as ours:
        ours.settimeout(1.0)
        try:
            ours.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:
            return True  # nobody knows
    return True


def _remove(path: Path) -> None:
    with suppress(OSError):
        for name in _SOCKETS:
            (path / name).unlink(missing_ok=True)
        path.rmdir()

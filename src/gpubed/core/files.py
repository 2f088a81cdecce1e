"""Reads and replaces files atomically, and durably where asked."""

from __future__ import annotations

import errno
import math
import os
import re
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

# On a full disk, the error of a write to an open file lacks the file's name.
_NAMELESS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS}


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Add the file's name to an `OSError` of the body that lacks it."""
    try:
        yield
    except OSError as error:
        if error.errno in _NAMELESS and error.filename is None:
            error.filename = str(path)
        raise


def read(path: Path, limit: int) -> bytes:
    """Read a whole file of at most `limit` bytes; raise `OSError` for anything else.

    A device has no end, and opening a pipe waits for its other end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a file", str(path))
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(limit + 1)
    finally:
        os.close(descriptor)
    if len(content) > limit:
        raise OSError(errno.EFBIG, f"it is larger than {size(limit)}", str(path))
    return content


def size(count: int) -> str:
    """Format a number of bytes for people."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if count >= factor:
            return f"{count / factor:.4g} {unit}"
    return f"{count} bytes"


def write(path: Path, content: bytes, mode: int = 0o644, *, durable: bool = False) -> None:
    """Replace a file atomically; its folder must exist.

    `mode` is applied before the umask. `durable` syncs, for files that cannot be regenerated.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        with named(path), os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
        if durable:
            sync(path.parent)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def write_named(path: Path, content: bytes) -> None:
    """Write to a path that the user names, following links and writing into devices and pipes."""
    if path.exists() and not path.is_file():
        with named(path), path.open("wb") as file:
            file.write(content)
    else:
        write(Path(os.path.realpath(path)), content)


def make(folder: Path) -> None:
    """Create a folder and its parents durably, so that they survive a power cut."""
    if folder.is_dir():
        return
    make(folder.parent)
    folder.mkdir(exist_ok=True)
    sync(folder.parent)


def sync(folder: Path) -> None:
    """Sync a folder's entries to disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def has(path: Path, text: str) -> bool:
    """Return whether a file has this content."""
    try:
        return read(path, len(text) * 4) == text.encode()
    except OSError:
        return False


def write_if_changed(path: Path, text: str) -> bool:
    """Write a file atomically unless it already has this content; return whether it did."""
    if has(path, text):
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, text.encode())
    return True


def without_nan(value: Any) -> Any:
    """Return data with None in place of NaN and infinity, which JSON lacks (RFC 8259)."""
    if isinstance(value, dict):
        return {name: without_nan(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def modules_with(folder: Path, *points: str) -> tuple[str, ...]:
    """Return the sorted names of a folder's modules that define one of `points`.

    Searches their text without importing them: completion stays fast, and a module that cannot be
    imported hides no other.
    """
    named = "|".join(points)
    point = re.compile(rf"^(?:def (?:{named})\(|(?:{named})(?:: [^=\n]+)? = )", re.MULTILINE)
    modules = (path for path in folder.glob("*.py") if not path.name.startswith("_"))
    return tuple(sorted(p.stem for p in modules if point.search(p.read_text(encoding="utf-8"))))

"""Keeps what a node remembers of itself in files. Standard library only."""

import fcntl
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Let those follow each other who read a file and write it anew."""
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def replace(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.chmod(0o644)  # whatever the umask of sudo: monitoring reads some of them
    draft.rename(path)


def keep(path: Path, spare: Path, text: str) -> None:
    """Write a file; in memory, until the next restart, where the disk is full or read-only."""
    try:
        replace(path, text)
    except OSError as error:
        sys.stderr.write(f"{spare} holds what is known, since the disk cannot: {error}\n")
        replace(spare, text)
    else:
        spare.unlink(missing_ok=True)


def publish(path: Path, lines: Iterable[str]) -> None:
    """Leave figures for the cluster's monitoring, where there is one.

    A full disk keeps nobody from what is to be done beside that.
    """
    if not path.parent.is_dir():
        return
    try:
        replace(path, "".join(f"{line}\n" for line in lines))
    except OSError as error:
        sys.stderr.write(f"monitoring is not told: {error}\n")

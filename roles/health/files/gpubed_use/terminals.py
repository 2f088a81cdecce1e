"""Terminals of this node: who typed there last, and what is written on them."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

FOLDER = Path("/dev/pts")


def every() -> Iterator[tuple[str, int, float]]:
    """Yield each terminal, its account's number, and when something was typed there.

    It is the time at which a program last read from it, in seconds since 1970 by this node's
    clock; those of JupyterLab and of tmux are terminals as those of a login.
    """
    with suppress(OSError):
        for path in FOLDER.iterdir():
            with suppress(OSError):
                found = path.stat()
                if path.name.isdigit():
                    yield path.name, found.st_uid, found.st_atime


def tell(text: str) -> int:
    """Write on all terminals; return on how many."""
    told, plain = 0, "".join(each for each in text if each.isprintable())
    for name, _, _ in every():
        with suppress(OSError):
            # Who reads nothing must not hold up the others.
            flags = os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_NOFOLLOW
            terminal = os.open(FOLDER / name, flags)
            try:
                os.write(terminal, f"\r\n\a{plain}\r\n".encode())
                told += 1
            finally:
                os.close(terminal)
    return told

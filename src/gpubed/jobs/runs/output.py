"""Keeps the output of a run: all of it up to a bound, then its beginning and its end.

A job may print without end, and others need the disk, too. Errors come last.
"""

from __future__ import annotations

import math
from typing import BinaryIO

from gpubed.core import files
from gpubed.core.text import printable

FIRST = 32 * 2**20
"""So many bytes at the beginning stay."""
PIECE = 16 * 2**20
"""So many are left out behind them at once, and at least as many stay at the end."""
_LENGTH = 150  # bytes of the notice about those that are left out


class Output:
    """Writes a run's output to a file.

    Args:
        file: An empty file, open for reading and writing.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._size, self._left_out = file, 0, 0

    def add(self, line: str) -> None:
        """Append a line without control sequences of terminals, and flush it to readers.

        Raises:
            OSError: The disk is full.
        """
        self._size += self._file.write(f"{printable(line)}\n".encode())
        self._file.flush()
        if self._size > FIRST + 2 * PIECE:
            self._shorten()

    def _shorten(self) -> None:
        """Cut one piece out behind the beginning; what follows moves by exactly that much."""
        self._left_out = (self._left_out or _LENGTH) + PIECE
        self._file.seek(FIRST + _LENGTH + PIECE)
        rest = self._file.read()
        self._file.seek(FIRST)
        self._file.write(_notice(self._left_out) + rest)
        self._file.flush()
        self._size = self._file.truncate()


def _notice(left_out: int) -> bytes:
    most = files.size(FIRST + 2 * PIECE)
    words = f"gpubed: {left_out} bytes are left out here: of what a run prints, {most} are kept"
    return f"\n{words:{_LENGTH - 2}}\n".encode()


def moved(place: int, size: int) -> int:
    """Return the new place of a reader after pieces were cut out of the file.

    Args:
        place: The reader's place before.
        size: The file's size now, in bytes.
    """
    pieces = math.ceil(max(place - size, 0) / PIECE)
    return max(place - pieces * PIECE, 0)

"""Writes the output of a run to a file of bounded size: the start and the end of a long output.

Errors are at the end.
"""

from __future__ import annotations

import math
from typing import BinaryIO

from gpubed.core import files
from gpubed.core.text import printable

FIRST = 32 * 2**20
"""Bytes that are kept at the start."""
PIECE = 16 * 2**20
"""Bytes that are left out at a time, and the least number of bytes that are kept at the end."""
_LENGTH = 150  # bytes of the notice about left out bytes


class Output:
    """Writes a run's output to a file.

    Args:
        file: An empty file, open for reading and writing.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._size, self._left_out = file, 0, 0

    def add(self, line: str) -> None:
        """Append a line without control sequences of terminals, and flush it."""
        self._size += self._file.write(f"{printable(line)}\n".encode())
        self._file.flush()
        if self._size > FIRST + 2 * PIECE:
            self._shorten()

    def _shorten(self) -> None:
        """Remove a piece after the start; the rest of the file moves by exactly its length."""
        self._left_out = (self._left_out or _LENGTH) + PIECE
        self._file.seek(FIRST + _LENGTH + PIECE)
        rest = self._file.read()
        most = files.size(FIRST + 2 * PIECE)
        notice = (
            f"gpubed: {self._left_out} bytes are left out here: of a run's output, {most} are kept"
        )
        self._file.seek(FIRST)
        self._file.write(f"\n{notice:{_LENGTH - 2}}\n".encode() + rest)
        self._file.flush()
        self._size = self._file.truncate()


def moved(place: int, size: int) -> int:
    """Return the new position of a reader after pieces were removed from the file.

    Args:
        place: The reader's position before.
        size: The file's size now, in bytes.
    """
    pieces = math.ceil(max(place - size, 0) / PIECE)
    return max(place - pieces * PIECE, 0)

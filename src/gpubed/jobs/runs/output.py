"""What a run prints, as it is kept: all of it up to a bound, then its beginning and its end.

A job may print without end, and the disk here is not its own alone. Errors come last.
"""

from __future__ import annotations

import math
from typing import BinaryIO

from gpubed.core import files, harmless

FIRST = 32 * 2**20
"""So many bytes at the beginning stay."""
PIECE = 16 * 2**20
"""So many are left out behind them at once, and at least as many stay at the end."""
_LENGTH = 150  # bytes of what stands in the place of those that are left out


class Output:
    """It, in a file that is open to be read and written.

    Args:
        file: Where it is kept, from the beginning on.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._size, self._left_out = file, 0, 0

    def add(self, line: str) -> None:
        """Keep a line, without what a terminal would obey; whoever looks sees it at once.

        Raises:
            OSError: The disk is full.
        """
        self._size += self._file.write(f"{harmless.text(line)}\n".encode())
        self._file.flush()
        if self._size > FIRST + 2 * PIECE:
            self._shorten()

    def _shorten(self) -> None:
        """Leave out a piece behind the beginning: what follows it moves by exactly so much."""
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
    """Return where a place in the file is, once it has only so many bytes.

    Args:
        place: Up to where somebody has read it.
        size: How many bytes it has now.
    """
    pieces = math.ceil(max(place - size, 0) / PIECE)
    return max(place - pieces * PIECE, 0)

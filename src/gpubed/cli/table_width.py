"""Chooses the widths of a table's columns so that words stay whole if there is room."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from rich.cells import cell_len

_SHORT = 12  # characters of words that are broken last, such as figures and units
_PART = re.compile(r"[^_./:-]*[_./:-]+|[^_./:-]+")


def of_columns(columns: Sequence[Sequence[str]], room: int) -> list[int]:
    """Return how wide each column is, in characters.

    Parts of words stay whole, such as those between underscores; where there is room, words do,
    from the first column on, which has what is copied; then cells, where the least is missing.

    Args:
        columns: Of each, its heading and its cells.
        room: What there is for all of them.
    """
    wants = [_longest(column, str.splitlines) for column in columns]
    whole, parts = ([_longest(column, of) for column in columns] for of in (str.split, _parts))
    found = list(parts)
    for index in range(len(columns)):
        found[index] += _more(whole[index] - found[index], room - sum(found))
    for index in sorted(range(len(columns)), key=lambda one: wants[one] - found[one]):
        found[index] += _more(wants[index] - found[index], room - sum(found))
    # Where not even parts have room, the widest are broken anywhere.
    while sum(found) > room and (widest := max(found)) > 1:
        found[found.index(widest)] -= 1
    return found


def broken(text: str, width: int) -> str:
    """Break words that are wider than the column between their parts."""
    return "\n".join("".join(_pieces(line, width)) for line in text.splitlines())


def _more(missing: int, left: int) -> int:
    return max(0, min(missing, left))


def _pieces(line: str, width: int) -> Iterator[str]:
    for word in re.split(r"(\s+)", line):
        taken = 0
        for part in (cell_len(word) > width and _parts(word)) or [word]:
            if taken and taken + cell_len(part) > width:
                yield "\n"
                taken = 0
            yield part
            taken += cell_len(part)


def _parts(text: str) -> list[str]:
    return [
        part
        for word in text.split()
        for part in (_PART.findall(word) if cell_len(word) > _SHORT else [word])
    ]


def _longest(column: Sequence[str], pieces: Callable[[str], Sequence[str]]) -> int:
    return max((cell_len(piece) for cell in column for piece in pieces(cell)), default=0)

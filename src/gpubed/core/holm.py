"""Holm's correction for several comparisons (Scandinavian Journal of Statistics 6 (1979), 65-70).

Without real differences, 19 of 20 families of comparisons show none, however the comparisons depend
on each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpubed.core.intervals import P

LEVEL = 0.05


@dataclass(frozen=True)
class Chance:
    """P values of a comparison: by itself, and corrected for its family of `count`."""

    alone: float
    among: float
    count: int

    @property
    def shows(self) -> bool:
        """Whether the difference is significant."""
        return self.among <= LEVEL

    @property
    def would_show(self) -> bool:
        """Whether the difference is significant only without the correction."""
        return self.alone <= LEVEL < self.among


def corrected(ps: Sequence[P | None]) -> list[Chance | None]:
    """Correct the p values of a family; None stands for no comparison."""
    known = sorted((p.strict, p.alone, place) for place, p in enumerate(ps) if p is not None)
    count, least = len(known), 0.0
    found: list[Chance | None] = [None] * len(ps)
    for rank, (strict, alone, place) in enumerate(known):
        p = alone if count == 1 else strict
        least = max(least, min(1.0, p * (count - rank)))
        found[place] = Chance(alone, least, count)
    return found


def told(count: int) -> str:
    """Describe the correction of so many verdicts, for the text under a table."""
    return (
        f"Each interval is of its own comparison; p and verdict are corrected for all {count} "
        "of them (Holm)."
    )


def written(chance: Chance | None) -> str:
    """Format a corrected p value."""
    if chance is None:
        return ""
    return "< 0.0001" if chance.among < 0.0001 else f"{chance.among:.2g}"

"""Holm's correction of p values (Scandinavian Journal of Statistics 6 (1979), 65-70).

Among families of comparisons without a real difference, at most 1 in 20 has a significant one, even
if the comparisons of a family depend on each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpubed.core.intervals import P

LEVEL = 0.05


@dataclass(frozen=True)
class Chance:
    """The p value of a comparison: uncorrected, and corrected for its family of `count`."""

    alone: float
    corrected: float
    count: int

    @property
    def is_significant(self) -> bool:
        """Whether the difference is significant."""
        return self.corrected <= LEVEL

    @property
    def lost_by_correction(self) -> bool:
        """Whether the difference is significant only without the correction."""
        return self.alone <= LEVEL < self.corrected


def corrected(ps: Sequence[P | None]) -> list[Chance | None]:
    """Correct the p values of a family; None stands for no comparison."""
    ascending = sorted((p.strict, p.alone, place) for place, p in enumerate(ps) if p is not None)
    count, least = len(ascending), 0.0
    chances: list[Chance | None] = [None] * len(ps)
    for rank, (strict, alone, place) in enumerate(ascending):
        p = alone if count == 1 else strict
        least = max(least, min(1.0, p * (count - rank)))
        chances[place] = Chance(alone, least, count)
    return chances


def footnote(count: int) -> str:
    """Describe the correction of `count` verdicts, for the text under a table."""
    return (
        f"Each interval is of its own comparison; p and verdict are corrected for all {count} "
        "of them (Holm)."
    )


def format_p(chance: Chance | None) -> str:
    """Format a corrected p value."""
    if chance is None:
        return ""
    return "< 0.0001" if chance.corrected < 0.0001 else f"{chance.corrected:.2g}"

"""Several comparisons at once: what each shows when all of them could have shown something.

Of twenty comparisons without a difference, one shows one at a level of 5 %. Holm's correction
(Scandinavian Journal of Statistics 6 (1979), 65-70) keeps that for the whole family: where there
is no difference, 19 of 20 families show none at all, however their comparisons depend on each
other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpubed.core.intervals import P

LEVEL = 0.05


@dataclass(frozen=True)
class Chance:
    """How likely it is that chance alone makes a difference as large as a measured one.

    Attributes:
        alone: The p value of the comparison by itself.
        among: The same, corrected for its family; of strict p values where there are several.
        count: How many comparisons the family has.
    """

    alone: float
    among: float
    count: int

    @property
    def shows(self) -> bool:
        """Whether the difference is more than chance."""
        return self.among <= LEVEL

    @property
    def would_show(self) -> bool:
        """Whether it only seems so where nobody minds how many comparisons there are."""
        return self.alone <= LEVEL < self.among


def corrected(ps: Sequence[P | None]) -> list[Chance | None]:
    """Correct the p values of a family; where there is none, nothing was compared."""
    known = sorted((p.strict, p.alone, place) for place, p in enumerate(ps) if p is not None)
    count, least = len(known), 0.0
    found: list[Chance | None] = [None] * len(ps)
    for rank, (strict, alone, place) in enumerate(known):
        p = alone if count == 1 else strict
        least = max(least, min(1.0, p * (count - rank)))
        found[place] = Chance(alone, least, count)
    return found


def told(count: int) -> str:
    """Say how verdicts were corrected, under a table of so many comparisons."""
    return (
        f"Each interval is of its own comparison; p and verdict are corrected for all {count} "
        "of them (Holm)."
    )


def written(chance: Chance | None) -> str:
    """Write a corrected p value."""
    if chance is None:
        return ""
    return "< 0.0001" if chance.among < 0.0001 else f"{chance.among:.2g}"

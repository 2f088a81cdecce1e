"""With which versions of software runs computed, as far as their jobs tell."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpubed.report.read import Point

_METRIC = "versions"


@dataclass(frozen=True)
class Version:
    """A version of what runs computed with.

    Attributes:
        runs: How many of them had it.
        of: How many tell any versions.
    """

    name: str
    version: str
    runs: int
    of: int

    def __str__(self) -> str:
        some = f" ({self.runs} of {self.of} runs)" if self.runs < self.of else ""
        return f"{self.name} {self.version}{some}"


def found(points: Iterable[Point]) -> list[Version]:
    """Return the versions that runs which ended well tell of, those of one name together."""
    told = [one for one in (_told(point) for point in points if point.status == "ok") if one]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for one in told:
        for name, version in one.items():
            counts[name][version] += 1
    return [
        Version(name, version, runs, len(told))
        for name, versions in counts.items()
        for version, runs in versions.items()
    ]


def _told(point: Point) -> Mapping[str, str]:
    told = point.metrics.get(_METRIC)
    known = told.items() if isinstance(told, dict) else ()
    return {name: version for name, version in known if isinstance(version, str)}

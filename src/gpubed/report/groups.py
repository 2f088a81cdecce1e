"""Groups the repetitions of each point.

Intervals are 95 % confidence intervals; points that were measured only once have none.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpubed.campaigns.file import Key, key
from gpubed.campaigns.records import Record
from gpubed.core import intervals
from gpubed.core.intervals import P
from gpubed.jobs.trials import Summary, summarize
from gpubed.report import wording
from gpubed.report.read import Measured, Value

_MOST_NODES = 1_000_000
LEAST = 1e-30  # smaller throughputs count as none


@dataclass(frozen=True)
class Ratio:
    """A ratio with its 95 % interval and p-value; a single measurement has neither."""

    value: float
    low: float | None = None
    high: float | None = None
    p: P | None = None

    def document(self) -> dict[str, float | None]:
        """Return the JSON document."""
        return {"value": self.value, "low": self.low, "high": self.high}


@dataclass(frozen=True)
class Group:
    """The repetitions of a point."""

    id: str
    settings: Mapping[str, Value]
    varied: tuple[str, ...]  # names of the settings that differ among the campaign's points
    points: tuple[Record, ...]  # successful repetitions
    failed: tuple[Record, ...]  # failed repetitions

    @cached_property
    def summaries(self) -> dict[str, Summary]:
        """Each metric over the repetitions."""
        return summarize([point.figures for point in self.points])

    def values(self, metric: str) -> list[float]:
        """Return a metric's value in each repetition."""
        return [p.figures[metric] for p in self.points if metric in p.figures]

    def count(self, metric: str | None) -> int:
        """Return how many repetitions reported a metric; all if `metric` is None."""
        return len(self.points) if metric is None else len(self.values(metric))

    def mean(self, metric: str) -> float | None:
        """Return the mean of a metric; None if it was not measured."""
        found = self.summaries.get(metric)
        return found.mean if found else None

    def half_width(self, metric: str) -> float | None:
        """Return half the width of a metric's 95 % interval; None without repetitions."""
        return intervals.half_width(self.values(metric))

    def others(self, *names: str) -> dict[str, Value]:
        """Return the settings except the named ones."""
        return {name: value for name, value in self.settings.items() if name not in names}

    def named(self, *without: str) -> str:
        """Write the settings that differ among points, `without` some, as a name."""
        rest = self.others(*without)
        differing = {name: value for name, value in rest.items() if name in self.varied}
        return wording.settings(differing or rest)

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        metrics = {
            name: {**found.document(), "half_width": self.half_width(name)}
            for name, found in self.summaries.items()
        }
        counts = {"n": len(self.points), "failed": len(self.failed)}
        return {"id": self.id, "settings": dict(self.settings), **counts, "metrics": metrics}


def made(measured: Measured) -> tuple[Group, ...]:
    """Return the groups in the order of the campaigns, with the groups of a series together."""
    repeated: dict[Key, list[Record]] = defaultdict(list)
    for point in measured.points:
        repeated[key(point.settings)].append(point)
    place = {name: number for number, name in enumerate(measured.campaign.factors)}
    varied = [name for name, values in measured.campaign.factors.items() if len(values) > 1]
    found = [
        Group(
            points[0].id,
            dict(sorted(points[0].settings.items(), key=lambda one: place.get(one[0], len(place)))),
            tuple(varied),
            tuple(p for p in points if p.status == "ok"),
            tuple(p for p in points if p.status == "failed"),
        )
        for points in repeated.values()
    ]
    places = {part.label: place for place, part in enumerate(measured.parts)}

    def order(group: Group) -> tuple[int, list[tuple[str, tuple[int, float, str]]]]:
        # Series stay together, small ones before large ones.
        rest = group.others(*wording.SCALES)
        both = {**rest, **{k: v for k, v in group.settings.items() if k in wording.SCALES}}
        place = places.get(str(group.settings.get(measured.factor)), 0)
        return place, [(name, wording.order(value)) for name, value in both.items()]

    return tuple(sorted(found, key=order))


def size(group: Group, scale: str) -> int:
    """Return a group's number of nodes or ranks; 0 if the setting is not a number."""
    value = group.settings.get(scale)
    if not isinstance(value, int) or isinstance(value, bool):
        return 0
    return value if 0 < value <= _MOST_NODES else 0


def ratio(one: Group, other: Group, metric: str, *, times: float = 1.0) -> Ratio:
    """Return the ratio of two means, times a factor; of geometric means if there is an interval."""
    if one.points == other.points:
        return Ratio(times, times, times, P(1, 1)) if len(one.values(metric)) > 1 else Ratio(times)
    found = intervals.quotient([one.values(metric)], [other.values(metric)], times=times)
    if found and math.isfinite(found.high):
        return Ratio(*found)
    return Ratio((one.mean(metric) or 0.0) * times / (other.mean(metric) or 1.0))

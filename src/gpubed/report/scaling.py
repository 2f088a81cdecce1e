"""Computes how throughput grows with the number of nodes, and how other factors change it.

Groups that differ only in the number of nodes are a *series*.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpubed.campaigns.file import NODES, Key, key
from gpubed.campaigns.records import Header
from gpubed.core import holm
from gpubed.core.holm import Chance
from gpubed.report import read, wording
from gpubed.report.groups import LEAST, Group, Ratio, ratio, size
from gpubed.report.read import Value

_PLAIN = ("ddp", "fp32", "none", "host")  # values that other values are compared with
_MOST_RANKS = 1_000_000


@dataclass(frozen=True)
class Scaled:
    """A group of a series."""

    group: Group
    size: int  # number of nodes or ranks
    ideal: float  # the throughput if it grew linearly
    efficiency: Ratio


@dataclass(frozen=True)
class Series:
    """Groups that differ only in their size.

    Attributes:
        baseline: The smallest group; or, if `borrowed`, one node measured at another link rate,
            since a single node uses no link.
    """

    settings: Mapping[str, Value]
    label: str
    baseline: Group
    baseline_size: int
    borrowed: bool
    points: tuple[Scaled, ...]

    def document(self) -> list[dict[str, Any]]:
        """Return the points for JSON."""
        baseline = {
            "id": self.baseline.id,
            "size": self.baseline_size,
            "hosts": self.hosts,
            "other_rate": self.borrowed,
        }
        series = {"series": dict(self.settings), "baseline": baseline}
        return [
            {"id": one.group.id, "size": one.size, **one.efficiency.document(), "ideal": one.ideal}
            | series
            for one in self.points
        ]

    @property
    def largest(self) -> Scaled:
        """The point with the most nodes."""
        return self.points[-1]

    @property
    def hosts(self) -> list[str]:
        """Host names of the baseline's ranks, if the job reports them."""
        names = (rank.host for point in self.baseline.points for rank in read.ranks(point))
        return list(dict.fromkeys(filter(None, names)))


@dataclass(frozen=True)
class Comparison:
    """The throughput with one value of a factor, divided by that with another, all else equal."""

    factor: str
    value: Value
    against: Value
    group: Group
    ratio: Ratio
    chance: Chance | None = None

    @property
    def tells(self) -> bool:
        """Whether the values differ significantly, corrected for the number of comparisons."""
        return self.chance is not None and self.chance.is_significant

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        own = {"factor": self.factor, "value": self.value, "against": self.against}
        settings, chance = self.group.others(self.factor), self.chance and asdict(self.chance)
        return {**own, "settings": settings, "ratio": self.ratio.document(), "chance": chance}


def series(groups: Iterable[Group], metric: str, scale: str, *, uneven: bool) -> Iterator[Series]:
    """Yield the series of a campaign.

    Args:
        groups: All groups of the campaign.
        metric: The throughput.
        scale: The setting that is the size: `nodes` or `ranks`.
        uneven: Whether nodes differ in their number of ranks. Groups without the metric
            `world_size` have no series then, since their number of ranks is unknown.
    """
    usable = [g for g in groups if (g.mean(metric) or 0) > LEAST and size(g, scale)]
    for members in _alike(usable, scale):
        members.sort(key=lambda group: size(group, scale))
        own = members[0]
        baseline = (None if size(own, scale) == 1 else _alone(usable, own, scale)) or own
        computing = [group.mean("world_size") or 0.0 for group in (baseline, *members)]
        if not all(1 <= ranks <= _MOST_RANKS for ranks in computing):
            if uneven:
                continue
            computing = [float(size(group, scale)) for group in (baseline, *members)]
        base, *each = computing
        yield Series(
            settings=own.others(scale),
            label=own.named(scale),
            baseline=baseline,
            baseline_size=size(baseline, scale),
            borrowed=baseline is not own,
            points=tuple(
                Scaled(
                    group,
                    size(group, scale),
                    ideal=(baseline.mean(metric) or 0.0) * computes / base,
                    efficiency=ratio(group, baseline, metric, times=base / computes),
                )
                for group, computes in zip(members, each, strict=True)
            ),
        )


def uneven(campaign: Header, scale: str | None) -> list[int]:
    """Return the different numbers of ranks per node; empty if equal, or if `scale` is ranks."""
    found = {node.slots for node in campaign.nodes if node.slots}
    return sorted(found) if scale == NODES and len(found) > 1 else []


def _alike(groups: Iterable[Group], *but: str) -> list[list[Group]]:
    found: dict[Key, list[Group]] = defaultdict(list)
    for group in groups:
        found[key(group.others(*but))].append(group)
    return list(found.values())


def _alone(groups: Iterable[Group], like: Group, scale: str) -> Group | None:
    """Return the group of a single node with the same settings, at any rate of its unused link."""
    wanted = key(like.others(scale, "rate"))
    found = [g for g in groups if size(g, scale) == 1 and key(g.others(scale, "rate")) == wanted]
    if not found or "rate" not in like.settings:
        return None
    return replace(found[0], points=tuple(point for group in found for point in group.points))


def corrected(found: Iterable[Comparison]) -> tuple[Comparison, ...]:
    """Correct the comparisons of a report for their number (Holm)."""
    listed = tuple(found)
    chances = holm.corrected([one.ratio.p for one in listed])
    return tuple(replace(one, chance=chance) for one, chance in zip(listed, chances, strict=True))


def comparisons(groups: Iterable[Group], factor: str, metric: str) -> Iterator[Comparison]:
    """Compare the throughput of the values of a factor, all else equal."""
    usable = [g for g in groups if factor in g.settings and (g.mean(metric) or 0) > LEAST]
    for members in _alike(usable, factor):
        ordered = sorted(members, key=lambda group: wording.order(group.settings[factor]))
        # Compares with the plain value, or with off, or with the smallest value.
        base = next((g for g in ordered if g.settings[factor] in _PLAIN), ordered[0])
        for group in ordered:
            if group is not base:
                value, against = group.settings[factor], base.settings[factor]
                yield Comparison(factor, value, against, group, ratio(group, base, metric))

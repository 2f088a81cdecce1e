"""Splits the time of steps, finds slow ranks, and finds what limits scaling."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpubed.campaigns.records import Header
from gpubed.core import holm, intervals
from gpubed.core.intervals import P
from gpubed.report import read, wording
from gpubed.report.groups import Group, Ratio
from gpubed.report.read import Rank
from gpubed.report.scaling import Scaled, Series

_GOODPUT = 0.94  # TCP's share of an Ethernet link's rate
_SLOW = 1.1  # a straggler's compute time over the median of the others, at least
_FEW = 0.05  # smaller shares of a step are not reported
_SPLIT = ("compute_s", "exposed_communication_s", "data_s")
_Parts = Mapping[str, float]  # of a step, in seconds
_Place = tuple[str, int]  # a host, and which of its ranks
_Pair = tuple[float, float]  # a rank's compute time, and the median of the others, in seconds


@dataclass(frozen=True)
class Step:
    """The time of a step and its parts, in seconds; the part `other` is the rest."""

    group: Group
    seconds: float
    parts: dict[str, float]

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {"id": self.group.id, "seconds": self.seconds, "parts": self.parts}

    def shares(self) -> dict[str, float]:
        """Return the parts as shares of the step, which sum up to 1."""
        whole = sum(self.parts.values())
        return {name: part / whole for name, part in self.parts.items()}


@dataclass(frozen=True)
class Straggling:
    """How much longer than the others a point's slowest rank computes.

    It is one rank in all repetitions; the slowest rank of each repetition is slow by chance, too.

    Attributes:
        ratio: Its compute time over the median of the other ranks', mean of the repetitions.
        waiting_s: Its additional compute time per step.
        once: The largest such ratio of any rank in a single repetition (`straggler_ratio`).
        shown: Whether it is significantly slow somewhere, among all ranks of the campaign.
    """

    group: Group
    ratio: Ratio
    waiting_s: float
    host: str
    once: float
    shown: bool

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        own = {"waiting_s": self.waiting_s, "host": self.host, "once": self.once}
        return {"id": self.group.id, **self.ratio.document(), **own, "slow": self.slow}

    @property
    def slow(self) -> bool:
        """Whether the rank is significantly slow; false without repetitions."""
        return self.shown and self.ratio.value > _SLOW and (self.ratio.low or 0.0) > 1


@dataclass(frozen=True)
class Limit:
    """The part of a step that grew the most from the smallest to the largest point of a series.

    Attributes:
        kind: `cause`, if significant. Else `none`, if all parts grew significantly less than 5 % of
            a step; `not shown`, if the growth may be chance; `not known`, without repetitions or
            fewer nodes to compare with.
        cause: The part: link, compute, data, stragglers or other.
        seconds: Its growth per step.
        grown: Whether fewer nodes were measured, too; else `seconds` is all of the part.
        least_s: The time in which the link's rate can transfer the gradients; None if unknown.
    """

    series: Series
    kind: str
    cause: str
    seconds: float
    low: float | None
    high: float | None
    grown: bool
    step: Step
    least_s: float | None
    p: P | None

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        own = ("size", "cause", "seconds", "low", "high", "share", "least_s", "beside_compute")
        named = {name: getattr(self, name) for name in own}
        return {"series": dict(self.series.settings), "limit": self.kind, **named}

    @property
    def share(self) -> float:
        """The cost as a share of a step."""
        return self.seconds / self.step.seconds

    @property
    def size(self) -> int:
        """The size of the series' largest point."""
        return self.series.largest.size

    @property
    def beside_compute(self) -> dict[str, float]:
        """The parts except compute of 5 % or more of the largest point's step, in seconds."""
        parts, few = self.step.parts.items(), _FEW * self.step.seconds
        return {name: took for name, took in parts if name != "compute_s" and took >= few}


def split(group: Group) -> Step | None:
    """Return the parts of a group's steps; None if the job does not report them."""
    parts = {name: mean for name in _SPLIT if (mean := group.mean(name)) is not None and mean >= 0}
    known = sum(parts.values())
    if "compute_s" not in parts or not known > 0:
        return None
    whole = max(group.mean("step_s") or 0.0, known)
    return Step(group, whole, {**parts, "other": whole - known})


def stragglers(groups: Iterable[Group]) -> Iterator[Straggling]:
    """Yield the slowest rank of each point, if several ranks report their compute time.

    P-values are corrected for the number of all ranks of the campaign.
    """
    each: list[tuple[Group, dict[_Place, list[_Pair]]]] = []
    ratios: dict[_Place, list[list[float]]] = defaultdict(list)
    for group in groups:
        times: dict[_Place, list[_Pair]] = defaultdict(list)
        for point in group.points:
            for place, compared in _compared(read.ranks(point)):
                times[place].append(compared)
        each.append((group, times))
        for place, pairs in times.items():
            ratios[place].append([own / others for own, others in pairs])
    chances = holm.corrected([_is_even(of) for of in ratios.values()])
    slow = {place for place, one in zip(ratios, chances, strict=True) if one and one.is_significant}
    for group, times in each:
        once = max((own / others for of in times.values() for own, others in of), default=1.0)
        found = []
        for place, pairs in times.items():
            each_ratio = [own / others for own, others in pairs]
            mean, width = statistics.fmean(each_ratio), intervals.half_width(each_ratio)
            ratio = Ratio(mean) if width is None else Ratio(mean, mean - width, mean + width)
            waiting_s = statistics.fmean(own - others for own, others in pairs)
            found.append(Straggling(group, ratio, waiting_s, place[0], once, place in slow))
        # A significantly slow rank comes before a rank that was slower by chance.
        if found:
            yield max(found, key=lambda one: (one.slow, one.ratio.value))


def _is_even(points: Sequence[Sequence[float]]) -> P | None:
    """Return the p-value that a rank is not slow, over all points or at any of them.

    None without repetitions.
    """
    whole = _at_most_1([ratio for ratios in points for ratio in ratios])
    if whole is None:
        return None
    single = [p for p in map(_at_most_1, points) if p is not None]
    p = min(1.0, 2 * min([whole, *(len(single) * p for p in single)]))
    return P(*[whole if len(points) == 1 else p] * 2)


def _at_most_1(ratios: Sequence[float]) -> float | None:
    """Return the p-value of ratios under the hypothesis of at most 1, by their logarithms."""
    if (found := intervals.mean_logarithm(ratios)) is None:
        return None
    return found.p.alone / 2 if found.value > 0 else 1 - found.p.alone / 2


def _compared(ranks: Sequence[Rank]) -> Iterator[tuple[_Place, _Pair]]:
    on_host = Counter[str]()
    for at, rank in enumerate(ranks if len(ranks) > 1 else ()):
        others = [one.compute_s for one in (*ranks[:at], *ranks[at + 1 :])]
        # Identified by its place on the host: rank numbers may differ in another repetition.
        yield (rank.host, on_host[rank.host]), (rank.compute_s, statistics.median(others))
        on_host[rank.host] += 1


def limited(
    series: Series, stragglers: Iterable[Straggling], least_s: float | None
) -> Limit | None:
    """Return the part of a step that grew the most from the baseline to the largest size.

    It is named if its growth is significantly above zero and above the growth of each other part,
    by Welch's test. Returns None for a single node, or if the job does not report the parts.
    """
    largest = series.largest
    step = split(largest.group)
    if step is None or largest.size == 1:
        return None
    start = split(series.baseline) if series.baseline_size < largest.size else None
    waiting_s = next((s.waiting_s for s in stragglers if s.group is largest.group and s.slow), 0.0)
    large, before = _causes(series, step, start, waiting_s)

    def growth(cause: str, less: str = "", compared_with: float = 0.0) -> intervals.Estimate | None:
        now, then = (
            [each[cause] - (each[less] if less else 0.0) for each in of] for of in (large, before)
        )
        return intervals.difference(now, then, compared_with=compared_with)

    grown = {cause: _mean(cause, large) - _mean(cause, before) for cause in large[0]}
    cause = max(grown, key=lambda one: grown[one])
    few = _FEW * step.seconds
    kind = cause if grown[cause] >= few else "none"
    if kind == "none":
        found = [growth(one, compared_with=few) for one in grown]
    else:
        found = [growth(cause), *(growth(cause, other) for other in grown if other != cause)]
    ps = [one.p for one in found if one]
    # All of the tests must be significant, so the largest p-value counts.
    tested = start is not None and len(ps) == len(found)
    most = growth(cause)
    return Limit(
        series=series,
        kind=kind,
        cause=cause,
        seconds=grown[cause],
        low=most and most.low,
        high=most and most.high,
        grown=start is not None,
        step=step,
        least_s=least_s,
        p=P(*map(max, zip(*ps, strict=True))) if tested else None,
    )


def corrected(found: Iterable[Limit]) -> tuple[Limit, ...]:
    """Correct the limits for their number (Holm)."""
    listed = tuple(found)
    chances = holm.corrected([one.p for one in listed])
    return tuple(
        one
        if chance and chance.is_significant
        else replace(one, kind="not shown" if chance else "not known")
        for one, chance in zip(listed, chances, strict=True)
    )


def _causes(
    series: Series, step: Step, start: Step | None, waiting_s: float
) -> tuple[list[_Parts], list[_Parts]]:
    """Return the seconds per step of each cause, by repetition, at the largest size and before.

    `Before` is the baseline; if that is the largest size, compute alone, as on one node.
    """
    large = _each(series.largest.group, step)
    if start:
        before = _each(series.baseline, start)
    else:
        before = [dict.fromkeys(parts, 0.0) | {"compute_s": parts["compute_s"]} for parts in large]
    exposed = "exposed_communication_s"
    # Other ranks wait for a straggler within the allreduce.
    waited = max(0.0, min(waiting_s, _mean(exposed, large) - _mean(exposed, before)))

    def by_cause(parts: _Parts, waited: float) -> _Parts:
        return {
            "link": parts.get(exposed, 0.0) - waited,
            "stragglers": waited,
            "data": parts.get("data_s", 0.0),
            "compute": parts["compute_s"],
            "other": parts["other"],
        }

    return [by_cause(parts, waited) for parts in large], [by_cause(parts, 0.0) for parts in before]


def _each(group: Group, step: Step) -> list[_Parts]:
    """Return the parts of each repetition's steps; their means if no repetition has all parts."""
    names = [name for name in _SPLIT if name in step.parts]
    found: list[_Parts] = []
    for point in group.points:
        if all(name in point.figures for name in names):
            parts = {name: point.figures[name] for name in names}
            other = max(point.figures.get("step_s", 0.0) - sum(parts.values()), 0.0)
            found.append({**parts, "other": other})
    return found or [step.parts]


def _mean(name: str, each: Sequence[_Parts]) -> float:
    return statistics.fmean(parts.get(name, 0.0) for parts in each)


def least(campaign: Header, largest: Scaled) -> float | None:
    """Return the least time of a step on the link in seconds, by its rate; None if unknown.

    An allreduce of S bytes moves 2(N-1)/N · S in and out of each of N nodes, by any algorithm
    (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). Jobs that average in
    another way report the bytes that a rank sends, which have the factor (N-1)/N for N ranks.
    """
    nodes, group = largest.size, largest.group
    sent, world = group.mean("sent_bytes_per_step"), group.mean("world_size") or nodes
    if sent is not None and world > 1:
        # Ranks of a node may sum up their data before one of them sends it.
        sent = sent * world / (world - 1) * (nodes - 1) / nodes
    else:
        sent = 2 * (nodes - 1) / nodes * (group.mean("gradient_bytes") or 0.0)
    # Rates below 1 bit/s are errors in an edited file.
    declared = min((bps for bps in campaign.declared_bps if bps >= 1), default=None)
    rate = wording.rate(group.settings.get("rate")) or declared
    return sent * 8 / (rate * _GOODPUT) if sent and rate and "nodes" in group.settings else None

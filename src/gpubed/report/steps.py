"""Where the time of a step goes, who is slow, and what that costs."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpubed.core import families, intervals
from gpubed.core.intervals import P
from gpubed.report import read, wording
from gpubed.report.groups import Group, Ratio
from gpubed.report.read import Campaign, Rank
from gpubed.report.scaling import Scaled, Series

_GOODPUT = 0.94  # of an Ethernet link's rate, what TCP brings across
_SLOW = 1.1  # times the others' median: what is called a straggler
FEW = 0.05  # of a step: less is not worth a sentence
_SPLIT = ("compute_s", "exposed_communication_s", "data_s")
_Causes = Mapping[str, float]  # what each cause takes of a step, in seconds
_Place = tuple[str, int]  # a host, and which of its ranks
_Pair = tuple[float, float]  # what a rank computes, and the median of the others, in seconds


@dataclass(frozen=True)
class Step:
    """Where the time of a step goes, in seconds; `other` is what the parts leave of it."""

    group: Group
    seconds: float
    parts: dict[str, float]

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"id": self.group.id, "seconds": self.seconds, "parts": self.parts}

    def shares(self) -> dict[str, float]:
        """Return the parts of a step, of 1."""
        whole = sum(self.parts.values())
        return {name: part / whole for name, part in self.parts.items()}


@dataclass(frozen=True)
class Straggling:
    """How much longer than the others the slowest rank of a point computes.

    It is one rank through all repetitions: the slowest of each would be slow by definition.

    Attributes:
        shown: Whether it is shown to be slow somewhere, among all ranks of the campaign.
        ratio: Its compute time over the median of the other ranks', mean of the repetitions.
        waiting_s: By how much it is more, in seconds per step.
        host: Where it was.
        once: The largest such ratio of any rank in a single repetition, which a job tells of
            itself (`straggler_ratio`); another rank may have it each time.
    """

    group: Group
    ratio: Ratio
    waiting_s: float
    host: str
    once: float
    shown: bool

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        found = {"id": self.group.id, **self.ratio.document()}
        own = {"waiting_s": self.waiting_s, "host": self.host, "once": self.once}
        return {**found, **own, "slow": self.slow}

    @property
    def slow(self) -> bool:
        """Whether it is more than noise, which nobody knows of a single run."""
        return self.shown and self.ratio.value > _SLOW and (self.ratio.low or 0.0) > 1


@dataclass(frozen=True)
class Limit:
    """What costs the most where a series is largest, beyond what it does where it is smallest.

    Attributes:
        kind: link, compute, data, stragglers, other; none where it is shown that nothing does,
            `not shown` where chance may be all that it is, `not known` without repetitions, or
            without fewer nodes to compare with.
        cause: Which of them grew the most, by chance or not.
        seconds: What that costs per step, beyond what the smallest point needs.
        low: Lower bound of its 95 % interval; None without repetitions.
        high: Its upper bound.
        share: `seconds`, of a step.
        grown: Whether fewer nodes were measured, too; else nobody knows what grew, and `seconds`
            is all that the cause takes.
        least_s: What the link's rate alone costs, by the gradients' size; None if unknown.
        p: What chance makes of it by itself; None without repetitions.
    """

    series: Series
    kind: str
    cause: str
    seconds: float
    low: float | None
    high: float | None
    share: float
    grown: bool
    step: Step
    least_s: float | None
    p: P | None

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {
            "series": dict(self.series.settings),
            "size": self.size,
            "limit": self.kind,
            "cause": self.cause,
            "seconds": self.seconds,
            "low": self.low,
            "high": self.high,
            "share": self.share,
            "least_s": self.least_s,
            "beside_compute": self.beside_compute,
        }

    @property
    def size(self) -> int:
        """Of the series' largest point."""
        return self.series.largest.size

    @property
    def beside_compute(self) -> dict[str, float]:
        """What a step there has beside compute, in seconds, where it is worth a sentence.

        It slows each step down whether or not it grew with the nodes.
        """
        parts, few = self.step.parts.items(), FEW * self.step.seconds
        return {name: took for name, took in parts if name != "compute_s" and took >= few}


def split(group: Group) -> Step | None:
    """Return where the time of its steps goes; None where the job does not tell."""
    parts = {name: mean for name in _SPLIT if (mean := group.mean(name)) is not None and mean >= 0}
    known = sum(parts.values())
    if "compute_s" not in parts or not known > 0:
        return None
    whole = max(group.mean("step_s") or 0.0, known)
    return Step(group, whole, {**parts, "other": whole - known})


def stragglers(groups: Iterable[Group]) -> Iterator[Straggling]:
    """Give how slow the slowest rank of each point is, where there are several that tell.

    All ranks of the campaign are one family, so that it does not matter how many there are.
    """
    each = [(group, _times(group)) for group in groups]
    slow = _slow([times for _, times in each])
    for group, times in each:
        once = max((own / others for each in times.values() for own, others in each), default=1.0)
        found = [
            _slowness(group, place[0], compared, once, shown=place in slow)
            for place, compared in times.items()
        ]
        # One that is known to be slow goes before what looked so once.
        if found:
            yield max(found, key=lambda one: (one.slow, one.ratio.value))


def _times(group: Group) -> dict[_Place, list[_Pair]]:
    """Return what each rank and the median of the others computed, by repetition."""
    times: dict[_Place, list[_Pair]] = defaultdict(list)
    for point in group.points:
        for place, compared in _compared(read.ranks(point)):
            times[place].append(compared)
    return times


def _slow(points: Iterable[Mapping[_Place, Sequence[_Pair]]]) -> set[_Place]:
    """Return the ranks that are slower than others by more than chance."""
    by_place: dict[_Place, list[list[float]]] = defaultdict(list)
    for times in points:
        for place, compared in times.items():
            by_place[place].append([own / others for own, others in compared])
    found = families.corrected([_is_even(each) for each in by_place.values()])
    return {place for place, one in zip(by_place, found, strict=True) if one and one.shows}


def _is_even(points: Sequence[Sequence[float]]) -> P | None:
    """Return how likely a rank only seems slow; None without repetitions.

    A node that is slow is so at all points, as a rule: it is looked at over all of them. One
    may be slow at a single point, too; the two ways to be found share the level.
    """
    whole = _at_most_1([ratio for ratios in points for ratio in ratios])
    if whole is None:
        return None
    single = [p for p in map(_at_most_1, points) if p is not None]
    several = min([whole, *(len(single) * p for p in single)])
    p = whole if len(points) == 1 else min(1.0, 2 * several)
    return P(p, p)


def _at_most_1(ratios: Sequence[float]) -> float | None:
    """Return how likely ratios are that high where they are 1 or less, by their logarithms."""
    found = intervals.mean_logarithm(ratios)
    if found is None:
        return None
    return found.p.alone / 2 if found.value > 0 else 1 - found.p.alone / 2


def _compared(ranks: Sequence[Rank]) -> Iterator[tuple[_Place, _Pair]]:
    """Yield where each of several ranks was, its compute time and the median of the others'."""
    on_host = Counter[str]()
    ordered = sorted(rank.compute_s for rank in ranks)
    for rank in ranks if len(ranks) > 1 else ():
        others = _median_without(ordered, rank.compute_s)
        # By its place on the host: the same host may have other ranks in another repetition.
        yield (rank.host, on_host[rank.host]), (rank.compute_s, others)
        on_host[rank.host] += 1


def _median_without(ordered: Sequence[float], value: float) -> float:
    """Return the median of sorted values but one, without sorting the others again."""
    out, rest = bisect_left(ordered, value), len(ordered) - 1
    low, high = (ordered[at + (at >= out)] for at in ((rest - 1) // 2, rest // 2))
    return (low + high) / 2


def _slowness(
    group: Group, host: str, compared: Sequence[_Pair], once: float, *, shown: bool
) -> Straggling:
    ratios = [own / others for own, others in compared]
    mean, width = statistics.fmean(ratios), intervals.half_width(ratios)
    ratio = Ratio(mean) if width is None else Ratio(mean, mean - width, mean + width)
    waiting_s = statistics.fmean(own - others for own, others in compared)
    return Straggling(group, ratio, waiting_s, host, once, shown)


def limited(
    series: Series, stragglers: Iterable[Straggling], least_s: float | None
) -> Limit | None:
    """Say which part of a step grew the most from the baseline to the largest number of nodes.

    It is named where its growth is above zero by more than chance, and more than that of each
    other one: all by Welch's test; how many series there are is minded by `corrected`. Parts of
    one repetition are compared with each other, as what is slow in one may be slow in all.

    Returns:
        None where there is one node only, or where the job does not tell.
    """
    largest = series.largest
    step = split(largest.group)
    if step is None or largest.size == 1:
        return None
    start = split(series.baseline) if series.baseline_size < largest.size else None
    waits = [one.waiting_s for one in stragglers if one.group is largest.group and one.slow]
    large, before = _costs(series, step, start, waits[0] if waits else 0.0)
    grown = {cause: _growth(large, before, cause) for cause in large[0]}
    cause = max(grown, key=lambda one: grown[one].seconds)
    most, few = grown[cause], FEW * step.seconds
    if most.seconds >= few:
        others = (_growth(large, before, cause, less=other) for other in grown if other != cause)
        kind, ps = cause, [most.p, *(lead.p for lead in others)]
    else:
        kind = "none"
        ps = [_growth(large, before, one, compared_with=few).p for one in grown]
    known = [p for p in ps if p is not None]
    # Each of them must tell, so the one that tells least does.
    told = start is not None and len(known) == len(ps)
    p = P(*map(max, zip(*known, strict=True))) if told else None
    return Limit(
        series=series,
        kind=kind,
        cause=cause,
        seconds=most.seconds,
        low=most.low,
        high=most.high,
        share=most.seconds / step.seconds,
        grown=start is not None,
        step=step,
        least_s=least_s,
        p=p,
    )


def corrected(found: Iterable[Limit]) -> tuple[Limit, ...]:
    """Return limits as one family: what chance makes of them is not shown."""
    listed = tuple(found)
    chances = families.corrected([one.p for one in listed])
    return tuple(
        replace(one, kind=one.kind if chance.shows else "not shown")
        if chance
        else replace(one, kind="not known")
        for one, chance in zip(listed, chances, strict=True)
    )


@dataclass(frozen=True)
class _Growth:
    """By how much something is more at the largest number of nodes, and its 95 % interval."""

    seconds: float
    low: float | None
    high: float | None
    p: P | None


def _growth(
    large: Sequence[_Causes],
    before: Sequence[_Causes],
    cause: str,
    *,
    less: str | None = None,
    compared_with: float = 0.0,
) -> _Growth:
    """Return by how much a cause, or its lead over another one, grew, with Welch's interval."""
    now, then = (
        [each[cause] - (each[less] if less else 0.0) for each in of] for of in (large, before)
    )
    if found := intervals.difference(now, then, compared_with=compared_with):
        return _Growth(*found)
    return _Growth(statistics.fmean(now) - statistics.fmean(then), None, None, None)


def _costs(
    series: Series, step: Step, start: Step | None, waiting_s: float
) -> tuple[list[_Causes], list[_Causes]]:
    """Return what each cause takes of a step, of each repetition at the largest size and before.

    Before is the baseline; where that is the largest, it is compute alone, as on one node.
    """
    large = _each(series.largest.group, step)
    if start:
        before = _each(series.baseline, start)
    else:
        before = [dict.fromkeys(parts, 0.0) | {"compute_s": parts["compute_s"]} for parts in large]
    communication = _mean_of("exposed_communication_s", large)
    added = communication - _mean_of("exposed_communication_s", before)
    waited = max(0.0, min(waiting_s, added))  # the others wait within the allreduce
    return [_causes(parts, waited) for parts in large], [_causes(parts, 0.0) for parts in before]


def _each(group: Group, step: Step) -> list[dict[str, float]]:
    """Return the parts of each repetition's steps; their means where no repetition has all."""
    names = [name for name in _SPLIT if name in step.parts]
    found = []
    for point in group.points:
        if all(name in point.figures for name in names):
            parts = {name: point.figures[name] for name in names}
            known = sum(parts.values())
            found.append({**parts, "other": max(point.figures.get("step_s", 0.0) - known, 0.0)})
    return found or [step.parts]


def _mean_of(name: str, each: Sequence[Mapping[str, float]]) -> float:
    return statistics.fmean(parts.get(name, 0.0) for parts in each)


def _causes(parts: Mapping[str, float], waited: float) -> _Causes:
    return {
        "link": parts.get("exposed_communication_s", 0.0) - waited,
        "stragglers": waited,
        "data": parts.get("data_s", 0.0),
        "compute": parts["compute_s"],
        "other": parts["other"],
    }


def least(campaign: Campaign, largest: Scaled) -> float | None:
    """Return what the link needs for a step, by its rate; None if that is not known.

    Returns:
        Seconds per step.
    """
    sent = _sent_bytes(largest)
    # Of less than a bit per second, nobody has declared a link: a file was edited.
    declared = min((bps for bps in campaign.declared_bps if bps >= 1), default=None)
    rate = wording.rate(largest.group.settings.get("rate")) or declared
    if not sent or not rate or "nodes" not in largest.group.settings:
        return None
    return sent * 8 / (rate * _GOODPUT)


def _sent_bytes(largest: Scaled) -> float | None:
    """Return what each node must send for a step, at least; None if that is not known.

    An allreduce of S bytes moves 2(N-1)/N · S in and out of each of N nodes, however it is done
    (https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md). A job that averages
    in another way says what a rank sends, which has the same (N-1)/N, of ranks.
    """
    nodes, group = largest.size, largest.group
    sent, world = group.mean("sent_bytes_per_step"), group.mean("world_size") or nodes
    if sent is None or world <= 1:
        gradients = group.mean("gradient_bytes")
        return None if gradients is None else 2 * (nodes - 1) / nodes * gradients
    # Ranks of a node can add up what they have before one of them sends it.
    return sent * world / (world - 1) * (nodes - 1) / nodes

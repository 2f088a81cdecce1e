"""What a campaign's points say, all together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice, product
from typing import Any

from gpubed.campaigns.drive import is_narrow
from gpubed.campaigns.file import Key, Stop, key
from gpubed.jobs import main_metric
from gpubed.report import groups, scaling, steps, together, wording
from gpubed.report.groups import Group
from gpubed.report.read import Measured, Point
from gpubed.report.scaling import Comparison, Series
from gpubed.report.steps import Limit, Step, Straggling

_MOST_COMBINATIONS = 100_000
_WORK = main_metric.WORK
# They say how much is computed, not how; throughputs of different amounts are no ratio.
_AMOUNTS = {*wording.SCALES, "batch", "batch_size", "image_size", "model"}
_AMOUNTS |= {"epochs", "steps", "seed"}


@dataclass(frozen=True)
class Version:
    """A version of software that runs used, by the job's metric `versions`.

    Attributes:
        runs: The number of runs with this version.
        of: The number of runs that report any versions.
    """

    name: str
    version: str
    runs: int
    of: int

    def __str__(self) -> str:
        some = f" ({self.runs} of {self.of} runs)" if self.runs < self.of else ""
        return f"{self.name} {self.version}{some}"


def versions(points: Iterable[Point]) -> list[Version]:
    """Return the versions that runs which ended well tell of, those of one name together."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    of = 0
    for told in (point.metrics.get("versions") for point in points if point.status == "ok"):
        named = told.items() if isinstance(told, dict) else ()
        known = [(name, version) for name, version in named if isinstance(version, str)]
        of += bool(known)
        for name, version in known:
            counts[name][version] += 1
    return [Version(name, *one, of) for name, each in counts.items() for one in each.items()]


@dataclass(frozen=True)
class Analysis:
    """The contents of a campaign's report.

    Attributes:
        metric: The metric that stands for a point, as in the table of `gpubed bench`.
        throughput: The metric of ratios: `metric` if that is a rate, else another rate.
    """

    measured: Measured
    metric: str | None
    throughput: str | None
    scale: str | None
    groups: tuple[Group, ...]
    series: tuple[Series, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    steps: tuple[Step, ...] = ()
    stragglers: tuple[Straggling, ...] = ()
    limits: tuple[Limit, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def single(self) -> tuple[Group, ...]:
        """Groups that were measured only once."""
        return tuple(group for group in self.groups if group.count(self.metric) == 1)

    def stopped(self) -> Iterator[tuple[str, int, int]]:
        """Give each metric that points were repeated for until its interval was narrow enough.

        Yields:
            The metric, at how many points it became so, and of how many.
        """
        repeated: dict[Stop, list[Group]] = defaultdict(list)
        for group in self.groups:
            if stop := self.measured.of(group.settings).campaign.stop:
                repeated[stop].append(group)
        for stop, found in repeated.items():
            narrow = sum(is_narrow(stop, group.values(stop.metric)) for group in found)
            yield stop.metric, narrow, len(found)

    @property
    def failed(self) -> tuple[Point, ...]:
        """Repetitions that ended badly."""
        return tuple(point for point in self.measured.points if point.status == "failed")

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "simulated": self.measured.simulated,
            "metric": self.metric,
            "throughput": self.throughput,
            "groups": [group.document() for group in self.groups],
            "efficiency": [one for series in self.series for one in series.document()],
            "comparisons": [one.document() for one in self.comparisons],
            "steps": [one.document() for one in self.steps],
            "stragglers": [one.document() for one in self.stragglers],
            "limits": [one.document() for one in self.limits],
            "versions": [asdict(one) for one in versions(self.measured.points)],
            "failed": [
                {"id": p.id, "repetition": p.repetition, "reason": p.reason} for p in self.failed
            ],
            "missing": list(self.missing),
            "broken": [asdict(one) for one in self.measured.broken],
            "use": [row.model_dump() for row in self.measured.use],
        }


def analyse(measured: Measured) -> Analysis:
    """Put a campaign's points together."""
    found = groups.made(measured)
    numbers = _numbers(measured, found)
    stops = [part.campaign.stop for part in measured.each]
    # What points were repeated for stands for them, where they were.
    asked = [stop.metric for stop in stops if stop and stop.metric in numbers]
    metric = main_metric.chosen(next(iter(asked), None), numbers) or None
    if metric is not None:
        measured = _judged(measured, metric)
        found = groups.made(measured)
    rates = [n for n in _numbers(measured, found) if n.endswith((_WORK, main_metric.LINK))]
    throughput = main_metric.chosen(metric, rates) or None
    scale = next((name for name in wording.SCALES if name in measured.campaign.factors), None)
    series: tuple[Series, ...] = ()
    # What a link brings does not grow with the number of nodes.
    if throughput and scale and throughput.endswith(_WORK):
        uneven = any(scaling.uneven(part.campaign, scale) for part in measured.each)
        series = tuple(scaling.series(found, throughput, scale, uneven=uneven))
    stragglers = tuple(steps.stragglers(found))
    least = [steps.least(measured.of(one.settings).campaign, one.largest) for one in series]
    limits = (steps.limited(s, stragglers, lst) for s, lst in zip(series, least, strict=True))
    return Analysis(
        measured,
        metric,
        throughput,
        scale,
        found,
        series,
        scaling.corrected(_comparisons(measured, found, throughput, scale)),
        tuple(filter(None, map(steps.split, found))),
        stragglers,
        steps.corrected(filter(None, limits)),
        tuple(_missing(measured)),
    )


def _numbers(measured: Measured, found: Iterable[Group]) -> list[str]:
    return together.shared(measured, dict.fromkeys(n for group in found for n in group.summaries))


def _comparisons(
    measured: Measured, found: Sequence[Group], throughput: str | None, scale: str | None
) -> Iterator[Comparison]:
    # A node by itself uses no link.
    several = [group for group in found if scale is None or groups.size(group, scale) != 1]
    for factor in measured.campaign.factors if throughput else ():
        if factor == measured.factor:
            yield from together.comparisons(measured, found, throughput or "")
        elif factor not in _AMOUNTS:
            comparable = several if factor == "rate" else found
            yield from scaling.comparisons(comparable, factor, throughput or "")


def _judged(measured: Measured, metric: str) -> Measured:
    why = {"status": "failed", "reason": f"it gave no {metric}"}
    points = tuple(
        point.model_copy(update=why)
        if point.status == "ok" and metric not in point.figures
        else point
        for point in measured.points
    )
    return replace(measured, points=points)


def _missing(measured: Measured) -> Iterator[str]:
    for part in measured.each:
        campaign = part.campaign
        ended: dict[Key, list[Point]] = defaultdict(list)
        for point in measured.points:
            if measured.of(point.settings) is part:
                own = {k: value for k, value in point.settings.items() if k in campaign.factors}
                ended[key(own)].append(point)
        place = {measured.factor: part.label} if part.label else {}
        for values in islice(product(*campaign.factors.values()), _MOST_COMBINATIONS):
            one = dict(zip(campaign.factors, values, strict=True))
            due, of, count = key(one), campaign.repeat, len(ended[key(one)])
            out = any(excluded <= due for excluded in campaign.excluded)
            if not out and count < of and not _is_enough(campaign.stop, ended[due]):
                named = wording.settings({**place, **one})
                yield f"{named}: {count} of {of} repetitions" if count else named


def _is_enough(stop: Stop | None, ended: Sequence[Point]) -> bool:
    good = [point.figures for point in ended if point.status == "ok"]
    return stop is not None and is_narrow(
        stop, [figures[stop.metric] for figures in good if stop.metric in figures]
    )

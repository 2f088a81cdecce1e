"""What a campaign's points say, all together."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpubed.campaigns.drive import is_narrow
from gpubed.campaigns.file import Stop
from gpubed.campaigns.records import Record
from gpubed.jobs.metrics import LINK, WORK, main_metric
from gpubed.report import groups, merge, residuals, scaling, steps, wording
from gpubed.report.groups import Group
from gpubed.report.read import Measured
from gpubed.report.residuals import Residual
from gpubed.report.scaling import Comparison, Series
from gpubed.report.steps import Limit, Step, Straggling

_WORK = WORK
# They say how much is computed, not how; throughputs of different amounts are no ratio.
_AMOUNTS = {*wording.SCALES, "batch", "batch_size", "image_size", "model"}
_AMOUNTS |= {"epochs", "steps", "seed", "emulate"}


def versions(points: Iterable[Record]) -> list[dict[str, Any]]:
    """Return the versions of software in the metric `versions` of `runs` of the `of` that tell."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    of = 0
    for told in (point.metrics.get("versions") for point in points if point.status == "ok"):
        named = told.items() if isinstance(told, dict) else ()
        known = [(name, version) for name, version in named if isinstance(version, str)]
        of += bool(known)
        for name, version in known:
            counts[name][version] += 1
    return [
        {"name": name, "version": version, "runs": runs, "of": of}
        for name, each in counts.items()
        for version, runs in each.items()
    ]


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
    residuals: tuple[Residual, ...] = ()

    @property
    def single(self) -> tuple[Group, ...]:
        """Groups that were measured only once."""
        return tuple(group for group in self.groups if group.count(self.metric) == 1)

    def stopped(self) -> Iterator[tuple[str, int, int]]:
        """Yield each metric of `stop`, at how many points it became narrow, and of how many."""
        repeated: dict[Stop, list[Group]] = defaultdict(list)
        for group in self.groups:
            if stop := self.measured.of(group.settings).campaign.stop:
                repeated[stop].append(group)
        for stop, found in repeated.items():
            narrow = sum(is_narrow(stop, group.values(stop.metric)) for group in found)
            yield stop.metric, narrow, len(found)

    @property
    def failed(self) -> tuple[Record, ...]:
        """Repetitions that ended badly."""
        return tuple(point for point in self.measured.points if point.status == "failed")

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        parts = ("groups", "comparisons", "steps", "stragglers", "limits")
        return {
            "simulated": self.measured.simulated,
            "emulated": self.measured.emulated,
            "metric": self.metric,
            "throughput": self.throughput,
            "efficiency": [one for series in self.series for one in series.document()],
            **{name: [one.document() for one in getattr(self, name)] for name in parts},
            "versions": versions(self.measured.points),
            "failed": [
                {"id": p.id, "repetition": p.repetition, "reason": p.reason} for p in self.failed
            ],
            "missing": list(self.missing),
            "predictions": [one.document() for one in self.residuals],
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
    metric = main_metric(next(iter(asked), None), numbers) or None
    if metric is not None:
        why = {"status": "failed", "reason": f"it gave no {metric}"}
        points = (
            point.model_copy(update=why)
            if point.status == "ok" and metric not in point.figures
            else point
            for point in measured.points
        )
        measured = replace(measured, points=tuple(points))
        found = groups.made(measured)
    rates = [n for n in _numbers(measured, found) if n.endswith((_WORK, LINK))]
    throughput = main_metric(metric, rates) or None
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
        tuple(residuals.of(measured, found)),
    )


def _numbers(measured: Measured, found: Iterable[Group]) -> list[str]:
    return merge.shared(measured, dict.fromkeys(n for group in found for n in group.summaries))


def _comparisons(
    measured: Measured, found: Sequence[Group], throughput: str | None, scale: str | None
) -> Iterator[Comparison]:
    # A node by itself uses no link.
    several = [group for group in found if scale is None or groups.size(group, scale) != 1]
    for factor in measured.campaign.factors if throughput else ():
        if factor == measured.factor:
            yield from merge.comparisons(measured, found, throughput or "")
        elif factor not in _AMOUNTS:
            comparable = several if factor == "rate" else found
            yield from scaling.comparisons(comparable, factor, throughput or "")


def _missing(measured: Measured) -> Iterator[str]:
    for part in measured.each:
        campaign, ended = part.campaign, defaultdict[str, list[Record]](list)
        for point in part.points:
            ended[point.id].append(point)
        place = {measured.factor: part.label} if part.label else {}
        for id_, settings in campaign.points.items():
            own, of = ended[id_], campaign.repeat
            good = [point.figures for point in own if point.status == "ok"]
            stop = campaign.stop
            known = stop and is_narrow(
                stop, [figures[stop.metric] for figures in good if stop.metric in figures]
            )
            if len(own) < of and not known:
                named = wording.settings({**place, **settings})
                yield f"{named}: {len(own)} of {of} repetitions" if own else named

"""Analyses the points of a campaign."""

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
# Factors that change how much is computed; throughputs of their values are not compared.
_AMOUNTS = {*wording.SCALES, "batch", "batch_size", "image_size", "model"}
_AMOUNTS |= {"epochs", "steps", "seed", "emulate"}


def versions(points: Iterable[Record]) -> list[dict[str, Any]]:
    """Return the versions of the job's software, from the metric `versions`.

    Each has the number of `runs` with that version, and `of` how many runs reported versions.
    """
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    of = 0
    for metric in (point.metrics.get("versions") for point in points if point.status == "ok"):
        items = metric.items() if isinstance(metric, dict) else ()
        reported = [(name, version) for name, version in items if isinstance(version, str)]
        of += bool(reported)
        for name, version in reported:
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
        metric: The metric that a point is judged by, as in the table of `gpubed bench`.
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
        """Yield each metric of `stop`, the number of points with a narrow interval, and of all."""
        repeated: dict[Stop, list[Group]] = defaultdict(list)
        for group in self.groups:
            if stop := self.measured.of(group.settings).campaign.stop:
                repeated[stop].append(group)
        for stop, found in repeated.items():
            narrow = sum(is_narrow(stop, group.values(stop.metric)) for group in found)
            yield stop.metric, narrow, len(found)

    @property
    def failed(self) -> tuple[Record, ...]:
        """Repetitions that failed."""
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
    """Analyse a campaign's points."""
    found = groups.made(measured)
    numbers = _numbers(measured, found)
    stops = [part.campaign.stop for part in measured.each]
    # The metric of `stop`, if points were repeated for it.
    preferred = [stop.metric for stop in stops if stop and stop.metric in numbers]
    metric = main_metric(next(iter(preferred), None), numbers) or None
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
    # A link's throughput does not grow with the number of nodes.
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
    # A single node uses no link.
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
            stopped = stop and is_narrow(
                stop, [figures[stop.metric] for figures in good if stop.metric in figures]
            )
            if len(own) < of and not stopped:
                named = wording.settings({**place, **settings})
                yield f"{named}: {len(own)} of {of} repetitions" if own else named

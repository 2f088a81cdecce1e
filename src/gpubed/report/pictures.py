"""The figures of a report: which there are data for, and what each of them says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from gpubed.report import charts, findings, topology, wording
from gpubed.report.analysis import Analysis
from gpubed.report.charts import Bar, Line, Mark, Row
from gpubed.report.groups import Group, Ratio
from gpubed.report.read import Measured
from gpubed.report.scaling import Comparison, Series
from gpubed.report.steps import Step
from gpubed.report.svg import KINDS, Figure

_ROWS = 40  # more do not fit a printed page
_SEEN = 0.001  # of a step: less is no part of a bar
T = TypeVar("T")


def drawn(analysis: Analysis) -> list[Figure]:
    """Return the figures in the order of the page."""
    return [
        *_throughput(analysis),
        *_efficiency(analysis),
        *_steps(analysis),
        *_comparisons(analysis),
        *_stragglers(analysis),
        *filter(None, _topologies(analysis.measured)),
    ]


def _throughput(analysis: Analysis) -> Iterator[Figure]:
    metric, scale = analysis.throughput, analysis.scale
    if metric is None or scale is None:
        return
    for name, of, panel in _panels("throughput", analysis.series):
        yield charts.lines(
            name,
            _titled(analysis, f"Throughput over {scale}{of}"),
            "Solid lines are measured, dotted ones what each series would reach if it grew with "
            f"the {scale}. "
            + _said(panel, {g.id: wording.figure(g.mean(metric), metric) for g in analysis.groups}),
            f"throughput, {wording.unit(metric)}",
            scale,
            [_throughput_line(series, metric) for series in panel],
        )


def _throughput_line(series: Series, metric: str) -> Line:
    start = series.baseline.mean(metric) or 0.0
    larger = (one for one in series.points if one.size > series.baseline_size)
    ideal = ((series.baseline_size, start), *((one.size, one.ideal) for one in larger))
    marks = [_mark(one.group, metric, one.size) for one in series.points]
    if series.borrowed:  # what one node does is where this series starts, too
        marks.insert(0, _mark(series.baseline, metric, series.baseline_size))
    return Line(series.label, tuple(marks), ideal if series.largest.size > 1 else ())


def _mark(group: Group, metric: str, size: int) -> Mark:
    mean, width = group.mean(metric) or 0.0, group.half_width(metric)
    return Mark(size, mean) if width is None else Mark(size, mean, mean - width, mean + width)


def _efficiency(analysis: Analysis) -> Iterator[Figure]:
    if analysis.scale is None:
        return
    grown = [one for one in analysis.series if one.largest.size > one.baseline_size]
    for name, of, panel in _panels("efficiency", grown):
        shares = {
            one.group.id: wording.percent(one.efficiency.value)
            for series in panel
            for one in series.points
        }
        yield charts.lines(
            name,
            _titled(analysis, f"Scaling efficiency over {analysis.scale}{of}"),
            "Throughput over that of perfect growth from the smallest size, of 100 %. "
            + _said(panel, shares),
            "efficiency, %",
            analysis.scale,
            [_efficiency_line(series) for series in panel],
        )


def _efficiency_line(series: Series) -> Line:
    marks = [Mark(one.size, *_percents(one.efficiency)) for one in series.points]
    if series.borrowed:
        marks.insert(0, Mark(series.baseline_size, 100.0, 100.0, 100.0))
    return Line(series.label, tuple(marks), ((series.baseline_size, 100.0), (marks[-1].x, 100.0)))


def _percents(ratio: Ratio) -> tuple[float, float | None, float | None]:
    low, high = (None if bound is None else bound * 100 for bound in (ratio.low, ratio.high))
    return ratio.value * 100, low, high


def _steps(analysis: Analysis) -> Iterator[Figure]:
    shares = [step.shares() for step in analysis.steps]
    names = [part for part in findings.PARTS if any(s.get(part, 0) > _SEEN for s in shares)]
    for name, of, panel in _chunks("steps", analysis.steps):
        yield charts.stacked(
            name,
            _titled(analysis, f"Where the time of a step goes{of}"),
            "Shares of a training step, whose duration stands at the right. "
            + "; ".join(map(_step_said, panel)),
            [findings.PARTS[part] for part in names],
            [
                Bar(
                    step.group.named(),
                    tuple(step.parts.get(part, 0.0) for part in names),
                    wording.figure(step.seconds, "step_s"),
                )
                for step in panel
            ],
        )


def _step_said(step: Step) -> str:
    shares = [f"{findings.PARTS[name]} {wording.percent(s)}" for name, s in step.shares().items()]
    return f"{step.group.named()}: {', '.join(shares)}"


def _comparisons(analysis: Analysis) -> Iterator[Figure]:
    by_factor: dict[str, list[Comparison]] = {}
    for one in analysis.comparisons:
        by_factor.setdefault(one.factor, []).append(one)
    measure = wording.metric(analysis.throughput or "")
    for number, (factor, found) in enumerate(by_factor.items()):
        # Files are named after what gpubed knows; a factor may have any name.
        stem = f"ratio-{factor}" if factor in ("rate", "framework") else f"ratio-{number}"
        kinds = list(dict.fromkeys(_against(one) for one in found))
        what = {"rate": "link rate"}.get(factor, factor.replace("_", " "))
        against = f": {kinds[0]}" if len(kinds) == 1 else ""
        for name, of, panel in _chunks(stem, found):
            yield charts.ratios(
                name,
                _titled(analysis, f"{measure.capitalize()} by {what}{against}{of}"),
                "Ratios, each with its own 95 % interval; at 1 there is no difference. "
                + "; ".join(
                    f"{_held(one)}, {_against(one)}: {findings.bounds(one.ratio)}" for one in panel
                ),
                f"ratio of {measure}",
                kinds,
                [Row(_held(one), _of(one.ratio), kinds.index(_against(one))) for one in panel],
            )


def _against(one: Comparison) -> str:
    value, against = (wording.setting(one.factor, v) for v in (one.value, one.against))
    return f"{value} over {against}"


def _held(one: Comparison) -> str:
    return one.group.named(one.factor)


def _of(ratio: Ratio) -> Mark:
    return Mark(ratio.value, 0, ratio.low, ratio.high)


def _stragglers(analysis: Analysis) -> Iterator[Figure]:
    for name, of, panel in _chunks("stragglers", analysis.stragglers):
        yield charts.ratios(
            name,
            _titled(analysis, f"The slowest rank's compute over the median of the others'{of}"),
            "At 1 all ranks are as fast. "
            + "; ".join(f"{one.group.named()}: {findings.bounds(one.ratio)}" for one in panel),
            "compute time of the slowest rank over the median of the others'",
            (),
            [Row(one.group.named(), _of(one.ratio)) for one in panel],
        )


def _topologies(measured: Measured) -> Iterator[Figure | None]:
    for number, part in enumerate(measured.each, start=1):
        yield topology.drawn(part, f"topology-{number}" if measured.parts else "topology")


def _titled(analysis: Analysis, title: str) -> str:
    """Add to a title what must not be overlooked, also where a figure is shown alone."""
    marks = ["simulated GPUs"] if analysis.measured.simulated else []
    if all(len(group.points) < 2 for group in analysis.groups):
        marks.append("no repetition")
    return f"{title} ({', '.join(marks)})" if marks else title


def _said(panel: Sequence[Series], values: Mapping[str, str]) -> str:
    return "; ".join(
        f"{series.label}: "
        + ", ".join(f"{values[one.group.id]} at {one.size}" for one in series.points)
        for series in panel
    )


def _panels(name: str, series: Sequence[Series]) -> Iterator[tuple[str, str, Sequence[Series]]]:
    """Yield as many figures as it takes that no two series of one look alike: by model, if so."""
    models = list(dict.fromkeys(str(one.settings.get("model")) for one in series))
    if len(series) <= KINDS or len(models) == 1:
        yield from _chunks(name, series, KINDS)
        return
    for number, model in enumerate(models, start=1):
        of = [one for one in series if str(one.settings.get("model")) == model]
        for stem, part, panel in _chunks(f"{name}-{number}", of, KINDS):
            yield stem, f", {model}{part}", panel


def _chunks(
    name: str, found: Sequence[T], most: int = _ROWS
) -> Iterator[tuple[str, str, Sequence[T]]]:
    """Yield parts of a size that fits a figure, each with a name and what to add to the title."""
    parts = [found[start : start + most] for start in range(0, len(found), most)]
    for number, part in enumerate(parts, start=1):
        alone = len(parts) == 1
        yield (
            name if alone else f"{name}-part-{number}",
            "" if alone else f" ({number} of {len(parts)})",
            part,
        )

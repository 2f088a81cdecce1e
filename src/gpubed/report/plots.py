"""The plots of a report: Vega-Lite specifications by Altair, rendered to SVG by vl-convert.

Colours are those of Okabe and Ito, which colour-blind people can distinguish; series also differ in
markers and dashes, and parts of bars are labelled with their share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from xml.sax.saxutils import quoteattr

import altair as alt
import vl_convert

from gpubed.report import residuals, wording
from gpubed.report.analysis import Analysis
from gpubed.report.groups import Group, Ratio
from gpubed.report.read import Measured

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#808080", "#000000")
_DASHES = ([1, 0], [8, 4], [16, 3], [8, 3, 2, 3], [5, 3], [16, 3, 3, 3], [2, 2], [20, 6])
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "wedge", "arrow")
_ROWS = 40  # more do not fit a printed page
_WIDTH, _HEIGHT = 760, 340
_CELLS = 10  # larger matrices have no room for figures
_LABELLED = 0.08  # smaller shares of a bar have no room for their figure
_VEGA_LITE = "6.4"
_CONFIG: dict[str, Any] = {
    "font": "system-ui, sans-serif",
    "background": "white",
    "padding": 8,
    "axis": {"labelFontSize": 12, "titleFontSize": 13, "labelLimit": 330, "titlePadding": 8}
    | {"gridColor": "#e4e4e4"},
    "legend": {"labelFontSize": 12, "titleFontSize": 12, "labelLimit": 560, "symbolStrokeWidth": 2},
    "view": {"stroke": None},
}
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Figure:
    """A plot as a Vega-Lite specification; `name` is its file's name, unique in a report."""

    name: str
    title: str
    specification: dict[str, Any]

    def svg(self) -> str:
        """Return the plot as SVG."""
        drawn = vl_convert.vegalite_to_svg(self.specification, _VEGA_LITE)
        label = f'<svg role="img" aria-label={quoteattr(self.title)} '
        return drawn.replace("<svg ", label, 1) + "\n"


def drawn(analysis: Analysis) -> list[Figure]:
    """Return the plots for which there are data, in the order of the page."""
    marks = [analysis.measured.mark] if analysis.measured.mark else []
    if all(len(group.points) < 2 for group in analysis.groups):
        marks.append("no repetition")
    mark = f" ({', '.join(marks)})" if marks else ""
    plots = [
        *_throughput(analysis),
        *_efficiency(analysis),
        *_steps(analysis),
        *_comparisons(analysis),
        *_stragglers(analysis),
        *_links(analysis.measured),
    ]
    return [_figure(name, f"{title}{mark}", chart) for name, title, chart in plots]


def of_curves(curves: Mapping[str, Sequence[tuple[float, float]]]) -> list[Figure]:
    """Return a plot of each curve, by step."""
    plots = list[Figure]()
    for number, (name, points) in enumerate(curves.items()):
        rows = [{"step": step, "value": value} for step, value in points]
        y = alt.Y("value:Q", title=wording.clean(name), scale=alt.Scale(zero=False))
        marks = alt.Chart(_data(rows)).mark_line(point=len(rows) < _ROWS, tooltip=True)
        chart = marks.encode(x=alt.X("step:Q", title="step"), y=y)
        plots.append(_figure(f"curve-{number}", name, chart.properties(width=_WIDTH, height=240)))
    return plots


_Plot = tuple[str, str, Any]  # a name, a title, and an Altair chart
_Line = tuple[list[dict[str, Any]], list[tuple[int, float]]]  # points, and the ideal line


def _figure(name: str, title: str, chart: Any) -> Figure:
    specification = chart.properties(description=wording.clean(title)).to_dict()
    return Figure(name, wording.clean(title), {**specification, "config": _CONFIG})


def _data(rows: Iterable[Mapping[str, Any]]) -> alt.InlineData:
    """Return rows as data, without characters that XML does not allow."""
    return alt.InlineData(
        [{k: wording.clean(v) if isinstance(v, str) else v for k, v in row.items()} for row in rows]
    )


def _throughput(analysis: Analysis) -> Iterator[_Plot]:
    metric, scale = analysis.throughput, analysis.scale
    if metric is None or scale is None:
        return

    def point(size: int, group: Group) -> dict[str, Any]:
        mean, width = group.mean(metric) or 0.0, group.half_width(metric)
        spread = (None, None) if width is None else (mean - width, mean + width)
        return {"x": size, **_bounds(Ratio(mean, *spread))}

    told = analysis.measured.predicted if metric == residuals.METRIC else {}
    for name, of, panel in _parts("throughput", analysis.series, len(COLOURS)):
        lines: dict[str, _Line] = {}
        bands = [
            {"series": one.label, "x": each.size, "low": found.low, "high": found.high}
            for one in panel
            for each in one.points
            if (found := told.get(each.group.id))
        ]
        for one in panel:
            base, first = one.baseline_size, one.baseline
            points = [point(each.size, each.group) for each in one.points]
            ideal = [(base, first.mean(metric) or 0.0), *((p.size, p.ideal) for p in one.points)]
            lines[one.label] = ([point(base, first), *points] if one.borrowed else points, ideal)
        shaded = "; shaded: predicted before it ran, 90 %" if bands else ""
        title = f"Throughput over {scale}{of}; dotted: if it grew linearly{shaded}"
        yield name, title, _lines(lines, f"throughput, {wording.unit(metric)}", scale, bands)


def _efficiency(analysis: Analysis) -> Iterator[_Plot]:
    grown = [one for one in analysis.series if one.largest.size > one.baseline_size]
    for name, of, panel in _parts("efficiency", grown, len(COLOURS)):
        lines: dict[str, _Line] = {}
        for one in panel:
            base = {"x": one.baseline_size, "y": 100.0, "low": 100.0, "high": 100.0}
            points = [{"x": p.size, **_bounds(p.efficiency, 100)} for p in one.points]
            ideal = [(one.baseline_size, 100.0), (one.largest.size, 100.0)]
            lines[one.label] = ([base, *points] if one.borrowed else points, ideal)
        title = f"Scaling efficiency over {analysis.scale}{of}"
        yield name, title, _lines(lines, "efficiency, %", analysis.scale or "")


def _bounds(ratio: Ratio, times: float = 1.0) -> dict[str, float | None]:
    each = {"y": ratio.value, "low": ratio.low, "high": ratio.high}
    return {name: None if value is None else value * times for name, value in each.items()}


def _lines(
    series: Mapping[str, _Line], y_title: str, x_title: str, bands: Sequence[dict[str, Any]] = ()
) -> Any:
    rows = [{"series": label, **one} for label, (points, _) in series.items() for one in points]
    ideal: list[dict[str, Any]] = [
        {"series": label, "x": x, "y": y} for label, (_, line) in series.items() for x, y in line
    ]
    labels = [wording.clean(label) for label in series]
    top = _most(rows, [one["y"] for one in (*ideal, *({"y": one["high"]} for one in bands))])
    sizes = sorted({row["x"] for row in rows})
    span = max((sizes[-1] - sizes[0]) * 0.05, 0.2)
    x = alt.X(
        "x:Q",
        title=x_title,
        axis=alt.Axis(values=sizes, format="d", grid=False, labelOverlap=True),
        scale=alt.Scale(domain=[sizes[0] - span, sizes[-1] + span], nice=False),
    )
    y = alt.Y("y:Q", title=y_title, scale=alt.Scale(domain=[0, top], nice=True))

    def by_series(kind: Any, values: Sequence[Any]) -> Any:
        legend = alt.Legend(title=None, orient="bottom", columns=1 if len(labels) < 4 else 2)
        scale = alt.Scale(domain=labels, range=[*values[: len(labels)]])
        return kind("series:N", scale=scale, legend=legend)

    colour = by_series(alt.Color, COLOURS)
    picked = alt.selection_point(fields=["series"], bind="legend")
    faint = alt.condition(picked, alt.value(1), alt.value(0.15))
    base = alt.Chart(_data(rows)).encode(x=x, y=y, color=colour, opacity=faint)
    once = "datum.low === null"
    tooltip = ["series:N", alt.Tooltip("x:Q", title=x_title), *_shown(y_title)]
    dashes = by_series(alt.StrokeDash, _DASHES)
    shape = by_series(alt.Shape, _SHAPES)
    spread = base.transform_filter("datum.low !== null").encode(y=alt.Y("low:Q"), y2="high:Q")
    shades = alt.Chart(_data(bands)).mark_area(opacity=0.15, clip=True)
    shaded = [shades.encode(x=x, y=alt.Y("low:Q"), y2="high:Q", color=colour)] if bands else []
    return (
        alt.layer(
            *shaded,
            alt.Chart(_data(ideal))
            .mark_line(strokeDash=[2, 4], strokeWidth=1.2)
            .encode(x=x, y=y, color=colour, opacity=faint),
            base.mark_line(strokeWidth=2).encode(strokeDash=dashes),
            spread.mark_rule(strokeWidth=1.5, clip=True).encode(strokeDash=alt.value([1, 0])),
            base.mark_point(size=80, strokeWidth=2, filled=False).encode(
                shape=shape,
                tooltip=tooltip,
                fill=alt.condition(once, alt.value("white"), colour),
            ),
        )
        .add_params(picked)
        .properties(width=_WIDTH, height=_HEIGHT)
    )


def _shown(title: str) -> list[alt.Tooltip]:
    named = {"y:Q": title, "low:Q": "95 % from", "high:Q": "to"}
    return [alt.Tooltip(field, title=text, format=".4g") for field, text in named.items()]


def _most(rows: Iterable[Mapping[str, Any]], others: Iterable[float]) -> float:
    """Return the end of an axis, limited so that one very wide interval does not hide the rest."""
    rows = [*rows]
    middle = max([*(row["y"] for row in rows), *others, 1e-30])
    return float(min(max([middle, *(row["high"] or 0.0 for row in rows)]), 3 * middle))


def _steps(analysis: Analysis) -> Iterator[_Plot]:
    for name, of, panel in _parts("steps", analysis.steps, _ROWS):
        rows = [
            {
                "point": f"{one.group.named()}  ({wording.figure(one.seconds, 'step_s')})",
                "part": wording.PARTS[part],
                "order": place,
                "share": share,
                "written": wording.percent(share) if share >= _LABELLED else "",
                "took": wording.figure(one.parts[part], "step_s"),
            }
            for one in panel
            for place, (part, share) in enumerate(one.shares().items())
        ]
        parts = list(wording.PARTS.values())
        base = alt.Chart(_data(rows)).encode(
            x=alt.X(
                "share:Q", title="share of a step", axis=alt.Axis(format="%"), stack="zero"
            ).scale(domain=[0, 1]),
            y=alt.Y("point:N", title=None, sort=None),
            order="order:Q",
        )
        colour = alt.Color(
            "part:N",
            scale=alt.Scale(domain=parts, range=["#56B4E9", "#D55E00", "#E69F00", "#B0B0B0"]),
            legend=alt.Legend(title=None, orient="top"),
        )
        bars = base.mark_bar(stroke="white").encode(
            color=colour,
            tooltip=["point:N", "part:N", "took:N", alt.Tooltip("share:Q", format=".1%")],
        )
        text = base.mark_text(dx=-4, align="right", fontSize=11).encode(text="written:N")
        chart = alt.layer(bars, text).properties(width=_WIDTH - 240, height=alt.Step(24))
        yield name, f"Where the time of a step goes{of}", chart


def _comparisons(analysis: Analysis) -> Iterator[_Plot]:
    measure = wording.metric(analysis.throughput or "")
    factors = dict.fromkeys(one.factor for one in analysis.comparisons)
    for number, factor in enumerate(factors):
        # Other factors may have names that are not usable in file names.
        stem = f"ratio-{factor}" if factor in ("rate", "framework") else f"ratio-{number}"
        found = [one for one in analysis.comparisons if one.factor == factor]
        what = {"rate": "link rate"}.get(factor, factor.replace("_", " "))
        for name, of, panel in _parts(stem, found, _ROWS):
            rows = [
                (one.group.named(factor), wording.over(factor, one.value, one.against), one.ratio)
                for one in panel
            ]
            chart = _ratios(rows, f"ratio of {measure}")
            yield name, f"{measure.capitalize()} by {what}{of}", chart


def _stragglers(analysis: Analysis) -> Iterator[_Plot]:
    x_title = "compute time of the slowest rank over the median of the others'"
    for name, of, panel in _parts("stragglers", analysis.stragglers, _ROWS):
        rows = [(one.group.named(), one.host or "a rank", one.ratio) for one in panel]
        title = f"The slowest rank's compute over the median of the others'{of}"
        yield name, title, _ratios(rows, x_title)


def _ratios(rows: Sequence[tuple[str, str, Ratio]], x_title: str) -> Any:
    """Draw ratios with their intervals, and a line at 1, where there is no difference."""
    data: list[dict[str, Any]] = [
        {"row": row, "kind": kind, **_bounds(ratio)} for row, kind, ratio in rows
    ]
    kinds = [wording.clean(kind) for kind in dict.fromkeys(kind for _, kind, _ in rows)]
    low = min(1.0, *(one["y"] if one["low"] is None else max(one["low"], 0) for one in data))
    scale = alt.Scale(domain=[low, _most(data, [1.0])], nice=True, zero=False)
    by_kind = alt.Scale(domain=kinds, range=[COLOURS[n % len(COLOURS)] for n in range(len(kinds))])
    legend = alt.Legend(title=None, orient="top", columns=3)
    base = alt.Chart(_data(data)).encode(
        y=alt.Y("row:N", title=None, sort=None, axis=alt.Axis(grid=True)),
        x=alt.X("y:Q", title=x_title, scale=scale),
        color=alt.Color("kind:N", scale=by_kind, legend=legend),
        tooltip=["row:N", "kind:N", *_shown("ratio")],
    )
    several = len({row for row, *_ in rows}) < len(rows)
    if several:  # kinds of a row are drawn one above the other
        base = base.encode(yOffset=alt.YOffset("kind:N", scale=alt.Scale(domain=kinds)))
    spread = base.transform_filter("datum.low !== null").encode(
        x=alt.X("low:Q", title=x_title, scale=scale), x2="high:Q"
    )
    once = alt.condition("datum.low === null", alt.value("white"), base.encoding.color)
    at_1 = alt.Chart(_data([{"one": 1}])).mark_rule(strokeDash=[6, 4]).encode(x="one:Q")
    return alt.layer(
        at_1,
        spread.mark_rule(strokeWidth=1.5, clip=True),
        base.mark_point(size=70, strokeWidth=2, clip=True, opacity=1).encode(
            fill=once, shape=alt.Shape("kind:N", scale=alt.Scale(domain=kinds), legend=legend)
        ),
    ).properties(width=_WIDTH - 240, height=alt.Step(14 * len(kinds) if several else 24))


def _links(measured: Measured) -> Iterator[_Plot]:
    for number, part in enumerate(measured.each, start=1):
        links = [one for one in part.campaign.links if one.measured_bps]
        if not links:
            continue
        rows = [
            {
                "from": one.src,
                "to": one.dst,
                "rate": one.measured_bps,
                "written": wording.figure(one.measured_bps, "_bps"),
                "declared": wording.figure(one.declared_bps, "_bps") or "not declared",
            }
            for one in links
        ]
        top = max(one.measured_bps or 0.0 for one in links)
        base = alt.Chart(_data(rows)).encode(
            x=alt.X("to:N", title="to", axis=alt.Axis(labelAngle=-40)),
            y=alt.Y("from:N", title="from"),
            tooltip=["from:N", "to:N", alt.Tooltip("written:N", title="measured"), "declared:N"],
        )
        legend = alt.Legend(title="measured, bit/s", format="~s")
        colour = alt.Color("rate:Q", legend=legend).scale(scheme="blues", domain=[0, top])
        chart = alt.layer(base.mark_rect(stroke="white").encode(color=colour))
        if len({one.src for one in links}) <= _CELLS:
            ink = alt.condition(f"datum.rate > {top / 2}", alt.value("white"), alt.value("black"))
            chart += base.mark_text(fontSize=11).encode(text="written:N", color=ink)
        name = f"links-{number}" if measured.parts else "links"
        title = f"Cluster {part.label or part.campaign.cluster}: measured rates of the links"
        step = alt.Step(90 if len({one.dst for one in links}) <= _CELLS // 2 else 56)
        yield name, title, chart.properties(width=step, height=alt.Step(36))


def _parts(name: str, found: Sequence[T], most: int) -> Iterator[tuple[str, str, Sequence[T]]]:
    parts = [found[start : start + most] for start in range(0, len(found), most)]
    for number, part in enumerate(parts, start=1):
        alone = len(parts) == 1
        of = "" if alone else f" ({number} of {len(parts)})"
        yield name if alone else f"{name}-{number}", of, part

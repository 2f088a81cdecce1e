"""The tables of a report, and `points.csv`."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from gpubed.configuration import use
from gpubed.core import families
from gpubed.core.units import duration
from gpubed.jobs import figures
from gpubed.report import findings, svg, wording
from gpubed.report.analysis import Analysis
from gpubed.report.groups import Group
from gpubed.report.read import Measured, Value
from gpubed.report.steps import Limit

_USUAL = (
    "step_s",
    "compute_s",
    "exposed_communication_s",
    "data_s",
    "val_accuracy",
    "test_accuracy",
    "loss",
)
_METRICS = 9  # columns that a page can show; report.json has all
_SIMULATED = "simulated"
_MEASURED = 4  # tables, of which the first ones have figures of GPUs
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


@dataclass(frozen=True)
class Table:
    """Rows under headings."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def made(analysis: Analysis) -> list[Table]:
    """Return the tables that have rows."""
    found = [
        _results(analysis),
        _scaling(analysis),
        _limits(analysis),
        _ratios(analysis),
        _failed(analysis),
        _missing(analysis),
        _broken(analysis.measured),
        *(table(part) for part in analysis.measured.each for table in (_nodes, _links, _use)),
    ]
    mark = " (simulated GPUs)" if analysis.measured.simulated else ""
    return [
        replace(table, title=table.title + mark) if number < _MEASURED else table
        for number, table in enumerate(found)
        if table.rows
    ]


def points_csv(measured: Measured) -> str:
    """Return every repetition with its settings and metrics that are one value, in SI units."""
    settings = list(dict.fromkeys(name for point in measured.points for name in point.settings))
    metrics = list(
        dict.fromkeys(
            name
            for point in measured.points
            for name, value in point.metrics.items()
            if not isinstance(value, list | dict)
        )
    )
    metrics = [name for name in metrics if name != _SIMULATED]
    fixed = ["id", "repetition", "status", "reason", "run_id", "started", "seconds"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_cell, [*fixed, _SIMULATED, *settings, *metrics]))
    for point in measured.points:
        row: list[object] = [getattr(point, name) for name in fixed]
        row += [measured.simulated, *(point.settings.get(name) for name in settings)]
        row += [point.metrics.get(name) for name in metrics]
        writer.writerow(map(_cell, row))
    return text.getvalue()


def _cell(value: object) -> object:
    """Return what a spreadsheet shows as it is: text that it would compute gets a quote."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = svg.clean(value)  # what the page leaves out, a terminal would obey
        return f"'{text}" if text.startswith(_FORMULA) else text
    return value if not isinstance(value, list | dict) else ""


def _results(analysis: Analysis) -> Table:
    names = dict.fromkeys(name for group in analysis.groups for name in group.summaries)
    same = {name: mean for name in names if (mean := _constant(analysis.groups, name)) is not None}
    first = [analysis.metric] if analysis.metric else []
    usual = [name for name in _USUAL if name in names]
    telling = [n for n in dict.fromkeys([*usual, *names]) if n not in {*first, *same}]
    metrics = [*first, *telling][:_METRICS]
    factors = _factors(analysis.groups)
    rows = [
        [
            *(_setting(name, group.settings.get(name, "")) for name in factors),
            _counts(group, analysis.metric),
            *(_mean(group, name, group.count(analysis.metric)) for name in metrics),
        ]
        for group in analysis.groups
    ]
    note = "Means and half of their 95 % intervals (Student's t); n is the number of repetitions."
    note += " A metric that some of them lack has an n of its own."
    if analysis.single:
        note += f" n = 1: {findings.NOT_REPEATED}."
    if same:
        listed = ", ".join(
            f"{_metric(name)}: {_plain(mean)}{_own_count(analysis, name)}"
            for name, mean in same.items()
        )
        note += f" The same at all points: {listed}."
    if len(first) + len(telling) > len(metrics):
        note += f" {len(first) + len(telling) - len(metrics)} more metrics are in report.json."
    headings = [*map(_heading, factors), "n", *map(_metric, metrics)]
    return Table("Results", headings, rows, note)


def _scaling(analysis: Analysis) -> Table:
    throughput = analysis.throughput or ""
    rows = [
        [
            series.label,
            str(one.size),
            wording.figure(one.group.mean(throughput), throughput),
            wording.figure(one.ideal, throughput),
            findings.bounds(one.efficiency, percent=True),
            f"{series.baseline_size}{', at another link rate' if series.borrowed else ''}",
        ]
        for series in analysis.series
        for one in series.points
        if one.size > series.baseline_size
    ]
    columns = ("series", analysis.scale or "", "throughput", "if linear", "efficiency", "against")
    note = (
        "E(N) = T(N) / (N · T(1)), its interval by Welch's t on logarithms. Where nodes differ in "
        "ranks, N counts ranks. "
        "One node uses no link, so its figure serves every link rate."
    )
    return Table("Scaling", columns, rows, note)


def _limits(analysis: Analysis) -> Table:
    rows = [
        [
            one.series.label,
            str(one.size),
            findings.named(one),
            f"{figures.written(one.seconds, 's')}{findings.interval(one)}",
            wording.percent(one.share),
            "" if one.least_s is None else figures.written(one.least_s, "s"),
            _beside_compute(one),
        ]
        for one in analysis.limits
    ]
    size = analysis.scale or ""
    columns = ("series", size, "limit", "costs per step", "of it", "link alone", "beside compute")
    note = (
        "What grew the most from the smallest point of a series to its largest, with Welch's 95 % "
        "interval; it is a limit where its growth and its lead over each other cause are more than "
        "chance, among all series (Holm). Where there is no smaller point, nobody knows what grew: "
        "it is what takes the most beside compute. "
        "The link alone: what a node must send for a step, such as 2(N-1)/N of the gradients, at "
        "94 % of its rate. Beside compute: what is 5 % of a step or more, whether it grew or not."
    )
    return Table("What limits scaling", columns, rows, note)


def _beside_compute(limit: Limit) -> str:
    """Write what a step has beside compute, as shares of it."""
    return ", ".join(
        f"{findings.PARTS[part]} {wording.percent(took / limit.step.seconds)}"
        for part, took in limit.beside_compute.items()
    )


def _ratios(analysis: Analysis) -> Table:
    rows = [
        [
            wording.setting(one.factor, one.value),
            wording.setting(one.factor, one.against),
            one.group.named(one.factor),
            findings.bounds(one.ratio),
            families.written(one.chance),
            _told(one.tells, one.chance is None),
        ]
        for one in analysis.comparisons
    ]
    count = max((one.chance.count for one in analysis.comparisons if one.chance), default=0)
    note = families.told(count) if count > 1 else ""
    title = f"Ratios of {wording.metric(analysis.throughput or '')}"
    return Table(title, ("", "over", "with", "ratio", "p", "differs"), rows, note)


def _told(tells: bool, alone: bool) -> str:
    if alone:
        return "not known"
    return "yes" if tells else "not shown"


def _failed(analysis: Analysis) -> Table:
    bad = {analysis.measured.of(p.settings).campaign.command: None for p in analysis.failed}
    commands = [f"{command} --again-failed" for command in bad if command]
    rows = [
        [
            wording.settings(p.settings),
            str(p.repetition),
            p.reason or "no reason given",
            p.run_dir or "",
        ]
        for p in analysis.failed
    ]
    again = f"To repeat them: {'; '.join(commands)}" if commands else ""
    return Table("What failed", ("point", "repetition", "reason", "run"), rows, again)


def _missing(analysis: Analysis) -> Table:
    rows = [[one] for one in analysis.missing]
    return Table("What had not ended yet", ("point",), rows, "The same command goes on with them.")


def _broken(measured: Measured) -> Table:
    rows = [[one.file, one.reason] for one in measured.broken]
    return Table("Files that are in no figure", ("file", "why"), rows)


def _titled(title: str, measured: Measured) -> str:
    """Say of which of several campaigns a table is."""
    return f"{title}: {measured.label}" if measured.label else title


def _nodes(measured: Measured) -> Table:
    rows = [
        [node.name, node.hardware or "not known", _number(node.slots), _gpus(node.gpus, measured)]
        for node in measured.campaign.nodes
    ]
    return Table(_titled("Nodes", measured), ("node", "hardware", "ranks", "GPUs"), rows)


def _gpus(count: int | None, measured: Measured) -> str:
    return f"{_number(count)} (simulated)" if count and measured.simulated else _number(count)


def _links(measured: Measured) -> Table:
    rows = [
        [one.src, one.dst, _rate(one.declared_bps), _rate(one.measured_bps)]
        for one in measured.campaign.links
    ]
    note = "As the last verification before the campaign measured them."
    title = _titled("Links of the experiment network", measured)
    return Table(title, ("from", "to", "declared", "measured"), rows, note)


def _use(measured: Measured) -> Table:
    rows = [
        [row.user or "unknown", row.job, *map(duration, (row.held_s, row.gpu_s, row.cpu_s))]
        for row in use.shown(measured.use)
    ]
    note = "In the 24 hours before this report; who holds GPUs that do not compute has a job there."
    columns = ("user", "job", "GPUs held", "GPUs computing", "CPUs")
    return Table(_titled("Who used the nodes", measured), columns, rows, note)


def _rate(bps: float | None) -> str:
    return "" if bps is None else figures.written(bps, "bit/s")


def _number(value: int | None) -> str:
    return "" if value is None else str(value)


def _factors(groups: Iterable[Group]) -> list[str]:
    return list(dict.fromkeys(name for group in groups for name in group.settings))


def _heading(name: str) -> str:
    return name.replace("_", " ")


def _setting(name: str, value: Value) -> str:
    return wording.setting(name, value) if name == "rate" else str(value)


def _counts(group: Group, metric: str | None) -> str:
    failed = f", {len(group.failed)} failed" if group.failed else ""
    return f"{group.count(metric)}{failed}"


def _mean(group: Group, metric: str, count: int) -> str:
    """Write a mean and half of its interval in the unit of the heading; n where it is another."""
    mean, width = group.mean(metric), group.half_width(metric)
    if mean is None:
        return ""
    own = f" (n = {group.count(metric)})" if group.count(metric) != count else ""
    spread = f" ± {_plain(float(f'{width:.2g}'))}" if width else ""
    return f"{_plain(mean)}{spread}{own}"


def _own_count(analysis: Analysis, metric: str) -> str:
    """Write the least n of a metric that some repetitions lack."""
    lacking = [g.count(metric) for g in analysis.groups if g.count(metric) != len(g.points)]
    return f" (n = {min(lacking)} at least)" if lacking else ""


def _constant(groups: Sequence[Group], metric: str) -> float | None:
    """Return what a metric is at all points; None where it is not the same."""
    found = {value for group in groups for value in group.values(metric)}
    everywhere = all(group.values(metric) for group in groups if group.points)
    return found.pop() if len(found) == 1 and len(groups) > 1 and everywhere else None


def _plain(value: float) -> str:
    """Write a figure in the unit of its heading."""
    return figures.written(value, "")


def _metric(name: str) -> str:
    unit = wording.unit(name)
    return f"{wording.metric(name)}, {unit}" if unit else wording.metric(name)

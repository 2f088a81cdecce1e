"""The tables of a report, and `points.csv`."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpubed.configuration import usage
from gpubed.core import holm
from gpubed.core.units import duration
from gpubed.jobs.metrics import formatted
from gpubed.report import summary, wording
from gpubed.report.analysis import Analysis
from gpubed.report.groups import Group
from gpubed.report.read import Measured

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
    mark = f" ({analysis.measured.mark})" if analysis.measured.mark else ""
    measured = [_results(analysis), _scaling(analysis), _limits(analysis), _ratios(analysis)]
    again = "The same command goes on with them."
    missing = [[one] for one in analysis.missing]
    broken = [[one.file, one.reason] for one in analysis.measured.broken]
    found = [
        *(replace(table, title=table.title + mark) for table in measured),
        _failed(analysis),
        Table("What had not ended yet", ("point",), missing, again),
        Table("Files that are in no figure", ("file", "why"), broken),
        *(table for part in analysis.measured.each for table in _of_cluster(part)),
    ]
    return [table for table in found if table.rows]


def points_csv(measured: Measured) -> str:
    """Return every repetition with its settings and its metrics of one value, in SI units."""
    settings = list(dict.fromkeys(name for point in measured.points for name in point.settings))
    items = (item for point in measured.points for item in point.metrics.items())
    metrics = dict.fromkeys(name for name, value in items if not isinstance(value, list | dict))
    metrics.pop(_SIMULATED, None)
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
    """Return a cell's text; a quote before it keeps spreadsheets from computing it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        text = wording.clean(value)  # without control characters, which terminals would obey
        return f"'{text}" if text.startswith(_FORMULA) else text
    return value if not isinstance(value, list | dict) else ""


def _results(analysis: Analysis) -> Table:
    found = analysis.groups
    names = dict.fromkeys(name for group in found for name in group.summaries)
    values = {name: [group.values(name) for group in found if group.points] for name in names}
    alike = [
        n for n, each in values.items() if all(each) and len({v for of in each for v in of}) == 1
    ]
    left_out = alike if len(found) > 1 else []
    first = [analysis.metric] if analysis.metric else []
    usual = [name for name in (*_USUAL, *names) if name in names and name not in left_out]
    metrics = list(dict.fromkeys([*first, *usual]))[:_METRICS]
    factors = dict.fromkeys(name for group in found for name in group.settings)
    rows = []
    for group in found:
        failed = f", {len(group.failed)} failed" if group.failed else ""
        count = group.count(analysis.metric)
        settings = ((name, group.settings.get(name, "")) for name in factors)
        cells = [wording.setting(k, v) if k == "rate" else str(v) for k, v in settings]
        rows.append([*cells, f"{count}{failed}", *(_mean(group, name, count) for name in metrics)])
    note = "Means and half of their 95 % intervals (Student's t); n is the number of repetitions."
    if analysis.single:
        note += f" n = 1: {summary.NOT_REPEATED}."
    if left := len(names) - len(metrics):
        note += f" {left} more metrics, or the same at all points, are in report.json."
    headings = [*(name.replace("_", " ") for name in factors), "n", *map(_metric, metrics)]
    return Table("Results", headings, rows, note)


def _scaling(analysis: Analysis) -> Table:
    throughput = analysis.throughput or ""
    rows = [
        [
            series.label,
            str(one.size),
            wording.figure(one.group.mean(throughput), throughput),
            wording.figure(one.ideal, throughput),
            summary.bounds(one.efficiency, percent=True),
            f"{series.baseline_size}{', at another link rate' if series.borrowed else ''}",
        ]
        for series in analysis.series
        for one in series.points
        if one.size > series.baseline_size
    ]
    columns = ("series", analysis.scale or "", "throughput", "if linear", "efficiency", "against")
    note = (
        "E(N) = T(N) / (N · T(1)), its interval by Welch's t on logarithms. Where nodes differ in "
        "ranks, N counts ranks. One node uses no link, so its figure serves every link rate."
    )
    return Table("Scaling", columns, rows, note)


def _limits(analysis: Analysis) -> Table:
    rows = [
        [
            one.series.label,
            str(one.size),
            summary.named(one),
            summary.cost(one),
            wording.percent(one.share),
            "" if one.least_s is None else formatted(one.least_s, "s"),
            summary.beside(one),
        ]
        for one in analysis.limits
    ]
    size = analysis.scale or ""
    columns = ("series", size, "limit", "costs per step", "of it", "link alone", "beside compute")
    note = (
        "The part that grew the most from the smallest point of a series to its largest, with "
        "Welch's 95 % interval; corrected for the number of series (Holm). Link alone: what a node "
        "must send for a step, such as 2(N-1)/N of the gradients, at 94 % of the link's rate. "
        "Beside compute: parts of 5 % of a step or more, grown or not."
    )
    return Table("What limits scaling", columns, rows, note)


def _ratios(analysis: Analysis) -> Table:
    rows = [
        [
            wording.setting(one.factor, one.value),
            wording.setting(one.factor, one.against),
            one.group.named(one.factor),
            summary.bounds(one.ratio),
            holm.format_p(one.chance),
            "not known" if one.chance is None else "yes" if one.tells else "not shown",
        ]
        for one in analysis.comparisons
    ]
    count = max((one.chance.count for one in analysis.comparisons if one.chance), default=0)
    note = holm.footnote(count) if count > 1 else ""
    title = f"Ratios of {wording.metric(analysis.throughput or '')}"
    return Table(title, ("", "over", "with", "ratio", "p", "differs"), rows, note)


def _failed(analysis: Analysis) -> Table:
    bad = {analysis.measured.of(p.settings).campaign.command: None for p in analysis.failed}
    commands = [f"{command} --again-failed" for command in bad if command]
    rows = [
        [wording.settings(p.settings), str(p.repetition), p.reason or "none given", p.run_dir or ""]
        for p in analysis.failed
    ]
    again = f"To repeat them: {'; '.join(commands)}" if commands else ""
    return Table("What failed", ("point", "repetition", "reason", "run"), rows, again)


def _of_cluster(part: Measured) -> list[Table]:
    label, campaign = f": {part.label}" if part.label else "", part.campaign
    simulated = " (simulated)" if part.simulated else ""
    nodes = [
        [
            node.name,
            node.hardware or "not known",
            "" if node.slots is None else str(node.slots),
            "" if node.gpus is None else f"{node.gpus}{simulated if node.gpus else ''}",
        ]
        for node in campaign.nodes
    ]
    rates = ((one, (one.declared_bps, one.measured_bps)) for one in campaign.links)
    links = [[one.src, one.dst, *(wording.figure(r, "_bps") for r in each)] for one, each in rates]
    users = [
        [row.user or "unknown", row.job, *map(duration, (row.held_s, row.gpu_s, row.cpu_s))]
        for row in usage.shown(part.use)
    ]
    return [
        Table(f"Nodes{label}", ("node", "hardware", "ranks", "GPUs"), nodes),
        Table(
            f"Links of the experiment network{label}",
            ("from", "to", "declared", "measured"),
            links,
            "As the last verification before the campaign measured them.",
        ),
        Table(
            f"Who used the nodes{label}",
            ("user", "job", "GPUs held", "GPUs computing", "CPUs"),
            users,
            "In the 24 hours before this report; GPUs held without computing have a job there.",
        ),
    ]


def _mean(group: Group, metric: str, count: int) -> str:
    mean, width = group.mean(metric), group.half_width(metric)
    if mean is None:
        return ""
    own = f" (n = {group.count(metric)})" if group.count(metric) != count else ""
    spread = f" ± {formatted(float(f'{width:.2g}'), '')}" if width else ""
    return f"{formatted(mean, '')}{spread}{own}"


def _metric(name: str) -> str:
    unit = wording.unit(name)
    return f"{wording.metric(name)}, {unit}" if unit else wording.metric(name)

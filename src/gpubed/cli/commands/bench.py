"""gpubed bench."""

import shlex
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer import Argument, Option

from gpubed.campaigns import file, repeat
from gpubed.campaigns.drive import Bench, Progress
from gpubed.campaigns.matrix import Point
from gpubed.campaigns.records import Record
from gpubed.campaigns.repeat import Comparison
from gpubed.cli import completion
from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.cluster import lease
from gpubed.configuration import unfinished
from gpubed.core import holm, intervals, runlock
from gpubed.core.errors import UsageError
from gpubed.jobs import jobfile
from gpubed.jobs.job_progress import Estimate
from gpubed.jobs.metrics import formatted, one_line
from gpubed.jobs.runs.compare import Difference, bounds
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.allocation import load as load_allocation
from gpubed.prediction.questions import figure
from gpubed.testbeds.specification import load_plan

EXAMPLE = "gpubed bench lab smoke"
PLACE = ("Experiments", 10)


def command(
    name: ClusterName,
    campaign: str | None = Argument(
        None,
        metavar="CAMPAIGN",
        help="A campaign file, or the name of a file in campaigns/.",
        autocompletion=completion.campaigns,
    ),
    repeats: Path | None = Option(
        None,
        "--repeat",
        metavar="REPORT.json",
        help="Run the campaign of a report again on this cluster, and compare.",
    ),
    plan: bool = Option(
        False, "--plan", help="Only show what would be run, and how long it takes."
    ),
    again_failed: bool = Option(
        False, "--again-failed", help="Also repeat the points that failed."
    ),
    new: bool = Option(
        False, "--new", help="Begin again; earlier results are kept under a dated name."
    ),
    as_json: Json = False,
) -> int:
    """Run a matrix of experiments. The same command goes on after an interruption."""
    ui, paths = UI(as_json), find(name)
    if (campaign is None) == (repeats is None):
        raise UsageError(
            "bench needs a campaign, or a report to repeat", f"gpubed bench {paths.name} smoke"
        )
    before = repeat.load(repeats) if repeats else None
    source = before.source if before else file.load(str(campaign), paths.project)
    job = jobfile.load(source.campaign.job)
    cluster = Cluster(paths, load_plan(paths.spec), load_allocation(paths.allocation))
    typed = ["--repeat", str(repeats)] if repeats else [str(campaign)]
    bench = Bench(cluster, source, job, shlex.join(["gpubed", "bench", paths.name, *typed]))
    unfinished.require_configured(cluster)
    unfinished.require_none(paths)
    lease.check_not_expired(paths)
    if before:
        repeat.require_comparable(before, cluster)
    telling = Telling(ui, bench)
    if plan:
        bench.look(new=new)
        telling.announce()
        telling.result(before)
        return 0
    with (
        runlock.hold(paths.state, "bench"),
        runlock.measuring(paths.state, "bench"),
        ui.working(f"campaign {source.name}") as show,
    ):
        for note in bench.begin(new=new, again_failed=again_failed):
            ui.note(note)
        telling.announce()
        ui.note(f"kept in {bench.folder.path}")
        if ui.err.is_terminal:
            telling.show = show
        bench.run(telling)
    telling.result(before)
    return 1 if bench.series.failed() or telling.warned else 0


class Telling:
    """Says how a campaign goes on, and what it found.

    Attributes:
        warned: Whether a link has not got its declared rate back.
    """

    def __init__(self, ui: UI, bench: Bench) -> None:
        self.ui, self.bench, self.warned = ui, bench, False
        self.unit = bench.job.metrics[bench.metric].unit if bench.metric else ""
        self.show: Callable[[str], object] = str

    def begins(self, point: Point, repetition: int) -> Callable[[str], None]:
        """See `drive.Telling`."""
        estimate, name = Estimate(), f"{point.id}, repetition {repetition}"
        self.show(f"{name} starts")

        def tell(line: str) -> None:
            if (progress := estimate.read(line)) is not None:
                self.show(f"{name}: {progress}")

        return tell

    def ends(self, record: Record) -> None:
        """See `drive.Telling`."""
        progress, metric = self.bench.series.progress(), self.bench.metric
        result = record.reason
        if record.status == "ok" and metric in record.figures:
            result = f"{metric} {formatted(record.figures[metric], self.unit)}"
        self.ui.mark(
            "pass" if record.status == "ok" else "fail",
            f"{progress.ended} of {progress.ended + progress.left}: {record.id}, repetition "
            f"{record.repetition}: {result or record.status} ({_time(progress)})",
        )

    def warns(self, fault: str) -> None:
        """See `drive.Telling`."""
        self.warned = True
        message = f"a link has not got its declared rate back: {fault}"
        self.ui.error(message, f"gpubed up {self.bench.cluster.name}")

    def announce(self) -> None:
        """Show how many runs are left, their time, and their cost in node-hours."""
        series, cluster = self.bench.series, self.bench.cluster
        progress, count = series.progress(), len(series.points)
        several = f" x {series.campaign.repeat}" if series.campaign.repeat > 1 else ""
        points = f"{count} point{'' if count == 1 else 's'}{several}"
        ended = "1 run has" if progress.ended == 1 else f"{progress.ended} runs have"
        are = "is" if progress.left == 1 else "are"
        left = f"{progress.left} {are} left, {_time(progress)}" if progress.left else "none is left"
        self.ui.note(f"campaign {self.bench.source.name}: {points}, {ended} ended, {left}")
        if not progress.left or cluster.plan.node_hours is None:
            return
        hours = self._node_hours(progress)
        if hours is None or progress.seconds is None:
            self.ui.note(f"node-hours: {len(cluster.allocation.nodes)} each hour")
            return
        self.ui.note(f"node-hours: about {formatted(hours, '')}")
        lent = lease.last(cluster.paths).remaining_s
        if lent is not None and lent < progress.seconds:
            self.ui.note(f"the lease ends before: gpubed renew {cluster.name} --auto")

    def _node_hours(self, progress: Progress) -> float | None:
        cluster = self.bench.cluster
        if progress.seconds is None or cluster.plan.node_hours is None:
            return None
        return len(cluster.allocation.nodes) * progress.seconds / 3600

    def result(self, before: repeat.Before | None, verb: str = "bench", **more: Any) -> None:
        """Show and compare the results of all points; `more` is for JSON alone."""
        ui, bench, series, metric = self.ui, self.bench, self.bench.series, self.bench.metric
        compared = repeat.compare(before, series, metric) if before else []
        differences = repeat.differences(before, bench.folder.begun()) if before else []
        ui.document(verb, {**self._document(compared, differences), **more})
        columns = [*series.campaign.factors, *(["predicted (90 %)"] if series.foretold else [])]
        columns += [f"{metric} (± 95 %)", "n"] if metric else []
        ui.table([*columns, "status"], map(self._row, series.points))
        if len(found := series.on_devices()) > 1:
            counts = "; ".join(f"{name}: {len(found[name])} point(s)" for name in sorted(found))
            why = "points differ in more than their settings: not all computed on one device"
            ui.say(one_line(f"{why} ({counts})"))
        for record in sorted(series.failed(), key=lambda record: record.key):
            ui.error(f"{record.id}, repetition {record.repetition}: {record.reason}")
        if series.failed():
            ui.note(f"to repeat what failed: {bench.command} --again-failed", whole=True)
        if before and metric:
            ui.say(f"compared with {before.header.cluster}, by {metric}:")
            for difference in differences:
                ui.say(f"  {difference}")
            ui.table(
                ["point", "before", "now", "ratio", "95 % interval", "p", "verdict"],
                [_compared(one, self.unit) for one in compared],
            )
            count = max((one.chance.count for one in compared if one.chance), default=0)
            if count > 1:
                ui.say(holm.footnote(count))
        there = bench.folder.path.exists()
        ui.say(f"{'results:' if there else 'results would be in'} {bench.folder.path}")

    def _document(
        self, compared: list[Comparison], differences: list[Difference]
    ) -> dict[str, Any]:
        bench, series, progress = self.bench, self.bench.series, self.bench.series.progress()
        kept = {"id", "status", "reason", "repetition", "settings", "run_id", "run_dir", "seconds"}
        ended = (record for point in series.points for record in series.of(point))
        pending = {"status": "pending", "run_id": "", "metrics": {}}

        def told(one: Record | Point) -> dict[str, Any]:
            foretold = series.foretold.get(one.id)
            return {"prediction": foretold and foretold.model_dump()}

        return {
            "differences": [vars(one) for one in differences],
            "comparisons": [one.document() for one in compared],
            "campaign": bench.source.name,
            "folder": str(bench.folder.path),
            "ended": progress.ended,
            "left": progress.left,
            "seconds_left": progress.seconds,
            "guessed": progress.guessed,
            "predicted": progress.predicted,
            "node_hours_left": self._node_hours(progress),
            "points": [
                *(one.model_dump(include=kept | {"metrics"}) | told(one) for one in ended),
                *(
                    {"id": one.id, "repetition": number, "settings": dict(one.settings)}
                    | {**pending, **told(one)}
                    for number, one in series.due()
                ),
            ],
        }

    def _row(self, point: Point) -> list[object]:
        series, metric = self.bench.series, self.bench.metric
        values, found = series.values(point, metric), series.of(point)
        failed = sum(record.status == "failed" for record in found)
        due = sum(one.id == point.id for _, one in series.due())
        status = f"{failed} failed" if failed else f"{due} pending" if due and found else ""
        status = status or ("ok" if found else "pending")
        measured = [_mean(values, self.unit), len(values)] if metric else []
        told = series.foretold.get(point.id)
        interval = told and f"{figure(told.low)} to {figure(told.high)} images/s"
        predicted = [interval] if series.foretold else []
        return [*point.settings.values(), *predicted, *measured, status]


def _compared(one: Comparison, unit: str) -> list[object]:
    means = ["" if mean is None else formatted(mean, unit) for mean in (one.before, one.now)]
    ratio = "" if one.ratio is None else f"{one.ratio:.3f}"
    interval = bounds(one.low, one.high)
    return [one.id, *means, ratio, interval, holm.format_p(one.chance), one.verdict]


def _mean(values: list[float], unit: str) -> str:
    if not values:
        return ""
    half = intervals.half_width(values)
    spread = "" if half is None else f" ± {formatted(float(f'{half:.2g}'), unit)}"
    return formatted(statistics.fmean(values), unit) + spread


def _time(progress: Progress) -> str:
    seconds, guessed = progress.seconds, progress.guessed
    if seconds is None:
        return "time left unknown until one has ended well"
    left = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    left = left if seconds < 7200 else f"{seconds / 3600:.1f} h"
    guess = f", {guessed} of {progress.left} runs guessed from the others" if guessed else ""
    told = f", {progress.predicted} of {progress.left} runs predicted" if progress.predicted else ""
    return f"{left} left{told}{guess}"

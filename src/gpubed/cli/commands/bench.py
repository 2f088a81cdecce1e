"""gpubed bench."""

import functools
import shlex
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from gpubed.campaigns import drive, file, matrix, provenance, records, repeat
from gpubed.campaigns.drive import Bench, Progress, Series
from gpubed.campaigns.file import Source
from gpubed.campaigns.matrix import Point
from gpubed.campaigns.records import Folder, Key, Record
from gpubed.campaigns.repeat import Comparison
from gpubed.cli import completion
from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.cluster import lease
from gpubed.configuration import health, unfinished
from gpubed.core import families, intervals, runlock
from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.reading import Unreadable
from gpubed.jobs import figures, jobfile, main_metric
from gpubed.jobs.job_progress import Estimate
from gpubed.jobs.jobfile import Job
from gpubed.jobs.runs.compare import Difference, bounds
from gpubed.nodes.allocation import load as load_allocation
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.ssh import Unreachable
from gpubed.testbeds.specification import load_plan

EXAMPLE = "gpubed bench lab smoke"
PLACE = ("Experiments", 10)


def command(
    name: ClusterName,
    campaign: Annotated[
        str | None,
        typer.Argument(
            metavar="CAMPAIGN",
            help="A campaign file, or the name of one of campaigns/.",
            autocompletion=completion.campaigns,
        ),
    ] = None,
    repeats: Annotated[
        Path | None,
        typer.Option(
            "--repeat",
            metavar="REPORT.json",
            help="Run the campaign of a report again, here, and compare.",
        ),
    ] = None,
    plan: Annotated[
        bool, typer.Option("--plan", help="Only say what would be run, and how long it takes.")
    ] = False,
    again_failed: Annotated[
        bool, typer.Option("--again-failed", help="Also repeat the points that failed.")
    ] = False,
    new: Annotated[
        bool,
        typer.Option("--new", help="Begin again; what is there is kept under a dated name."),
    ] = False,
    as_json: Json = False,
) -> int:
    """Run a matrix of experiments. Repeat it to go on after an interruption."""
    ui, paths = UI(as_json), find(name)
    if (campaign is None) == (repeats is None):
        raise UsageError(
            "bench needs a campaign, or a report to repeat", f"gpubed bench {paths.name} smoke"
        )
    before = repeat.load(repeats) if repeats else None
    source = before.source if before else file.load(str(campaign), paths.project)
    job = jobfile.load(source.campaign.job)
    cluster = Cluster(paths, load_plan(paths.spec), load_allocation(paths.allocation))
    points = matrix.expand(source, job)
    unfinished.require_configured(cluster)
    unfinished.require_none(paths)
    lease.check_not_expired(paths)
    if before:
        repeat.require_comparable(before, cluster)
    typed = ["--repeat", str(repeats)] if repeats else [str(campaign)]
    made = _Campaign(ui, cluster, source, job, points, typed, before)
    if plan:
        series = made.look(new=new)
        made.announce(series)
        made.tell(series)
        return 0
    with runlock.hold(paths.state, "bench"), runlock.measuring(paths.state, "bench"):
        return made.run(new=new, again_failed=again_failed)


@dataclass(frozen=True)
class _Campaign:
    """A campaign and the cluster that it is for.

    Attributes:
        typed: The campaign as it was named on the command line.
        before: The report that it repeats, if it does.
    """

    ui: UI
    cluster: Cluster
    source: Source
    job: Job
    points: list[Point]
    typed: list[str]
    before: repeat.Before | None = None

    @property
    def command(self) -> str:
        """What goes on with it."""
        return shlex.join(["gpubed", "bench", self.cluster.name, *self.typed])

    @property
    def metric(self) -> str:
        """The metric that stands for a point; empty where the job has no numbers."""
        stop = self.source.campaign.stop
        return main_metric.chosen(stop.metric if stop else None, self.job.numbers)

    @property
    def folder(self) -> Folder:
        """Where it is kept."""
        return Folder(self.cluster.paths.campaigns / self.source.name)

    def look(self, *, new: bool) -> Series:
        """Return what is known of it, without changing anything."""
        begun = None if new else self._begun()
        if begun is None:
            usable, _ = health.usable(self.cluster)
            matrix.require_room(self.source, self.cluster.allocation, usable.allocation)
            self._found_on_nodes(usable)
            return self._series({})
        # What nodes tell is looked at before each point.
        unseen = (provenance.IMAGE, provenance.DATASET)
        known = (self.source, self.points, self.cluster.allocation.uuid)
        records.require_same(begun, *known, self._made_with(self.cluster), unseen)
        return self._series(self._ended())

    def _series(self, ended: dict[Key, Record]) -> Series:
        job, ran = self.source.campaign.job, any(one.status == "ok" for one in ended.values())
        # Only worth a guess: once a run of its own has ended well, these count for nothing.
        earlier = [] if ran else drive.earlier(self.cluster, job)
        return Series(self.source.campaign, self.points, ended, earlier=earlier)

    def _begun(self) -> records.Begun | None:
        begun = self.folder.begun()
        return begun and begun.counting(self.points, one_host=self.cluster.allocation.one_host)

    def _ended(self) -> dict[Key, Record]:
        try:
            return self.folder.ended(self.points)
        except Unreadable as error:
            hint = f"{self.command} --again-failed moves it away and runs that repetition again"
            raise type(error)(error.message, hint) from None

    def _made_with(self, cluster: Cluster) -> dict[str, str]:
        return provenance.made_with(cluster, self.source.campaign.job)

    def _found_on_nodes(self, usable: Cluster) -> dict[str, str]:
        given = [one.container for one in self.source.campaign.environments.values()]
        containers = [image for image in (self.job.container, *given) if image]
        return provenance.found_on_nodes(usable, self.source, self.job, containers)

    def run(self, *, new: bool, again_failed: bool) -> int:
        """Run what is due of it; return the exit code."""
        ui = self.ui
        if again_failed and not new:
            self.folder.put_points_aside(self.folder.unreadable(self.points))
        series = self.look(new=new)
        if new and (aside := self.folder.put_aside(datetime.now(UTC))):
            ui.note(f"what was there is kept in {aside}")
        begun = self._begun() or self._begin()
        if again_failed:
            series.again = {record.key for record in series.failed()}
        self.announce(series)
        ui.note(f"kept in {self.folder.path}")
        telling = _Telling(ui, self, series)
        bench = Bench(
            cluster=self.cluster,
            series=series,
            folder=self.folder,
            nodes=begun.with_ranks,
            kin=f"{self.source.name}.{begun.started}",
            made_with=begun.made_with,
            metric=self.metric,
            requires=functools.partial(self._require_alike, begun),
            begins=telling.begins,
            ends=telling.ends,
            warns=telling.warns,
        )
        with ui.working(f"campaign {self.source.name}") as show:
            telling.show = show if ui.err.is_terminal else _discard
            bench.run()
        self.tell(series)
        return 1 if series.failed() or telling.warned else 0

    def _require_alike(self, begun: records.Begun, container: str | None, usable: Cluster) -> None:
        image = container or self.job.container
        containers = [image] if image else []
        told = provenance.found_on_nodes(usable, self.source, self.job, containers)
        now = {**self._made_with(self.cluster), **told}
        # The images of other points are looked at before these.
        records.require_alike(begun, self.source, now, (provenance.IMAGE,))

    def _begin(self) -> records.Begun:
        usable, left_out = health.usable(self.cluster)
        for node in left_out:
            self.ui.mark("skip", f"{node.node} is left out: {node.reason}")
        made = {**self._made_with(usable), **self._found_on_nodes(usable)}
        self.folder.begin(provenance.header(usable, self.source, self.points, self.command, made))
        begun = self._begun()
        assert begun  # noqa: S101  # it has just been written
        return begun

    def announce(self, series: Series) -> None:
        """Say how much is to be run, how long that takes, and what it costs."""
        progress, count = series.progress(), len(self.points)
        several = f" x {series.campaign.repeat}" if series.campaign.repeat > 1 else ""
        points = f"{count} point{'' if count == 1 else 's'}{several}"
        ended = "1 run has" if progress.ended == 1 else f"{progress.ended} runs have"
        are = "is" if progress.left == 1 else "are"
        left = f"{progress.left} {are} left, {_time(progress)}"
        self.ui.note(
            f"campaign {self.source.name}: {points}, {ended} ended, "
            f"{left if progress.left else 'none is left'}"
        )
        if not progress.left or self.cluster.plan.node_hours is None:
            return
        if progress.seconds is None:
            nodes = len(self.cluster.allocation.nodes)
            self.ui.note(f"node-hours: {nodes} each hour")
            return
        self.ui.note(f"node-hours: about {figures.written(self._node_hours(progress) or 0, '')}")
        lent = lease.last(self.cluster.paths).remaining_s
        if lent is not None and lent < progress.seconds:
            self.ui.note(f"the lease ends before: gpubed renew {self.cluster.name} --auto")

    def _lacks_nodes(self) -> bool:
        """Say whether a node does not answer, so that what failed there would fail again."""
        try:
            _, left_out = health.usable(self.cluster)
        except Unreachable:
            return True
        except GpubedError:  # the head is not well, which `up` does not mend
            return False
        return any(not node.reachable for node in left_out)

    def _node_hours(self, progress: Progress) -> float | None:
        if progress.seconds is None or self.cluster.plan.node_hours is None:
            return None
        return len(self.cluster.allocation.nodes) * progress.seconds / 3600

    def tell(self, series: Series) -> None:
        """Say what every point gave."""
        metric = self.metric
        unit = self.job.metrics[metric].unit if metric else ""
        compared = repeat.compare(self.before, series, metric) if self.before else []
        differences = repeat.differences(self.before, self.folder.path) if self.before else []
        self.ui.document("bench", self._document(series, compared, differences))
        self.ui.table(
            [*series.campaign.factors, *([f"{metric} (± 95 %)", "n"] if metric else []), "status"],
            [_row(series, point, metric, unit) for point in self.points],
        )
        if len(found := series.on_devices()) > 1:
            told = "; ".join(f"{device}: {len(found[device])} point(s)" for device in sorted(found))
            why = "points differ in more than their settings: not all computed on one device"
            self.ui.say(figures.one_line(f"{why} ({told})"))
        for record in sorted(series.failed(), key=lambda record: record.key):
            self.ui.error(f"{record.id}, repetition {record.repetition}: {record.reason}")
        if series.failed():
            first = [f"gpubed up {self.cluster.name}"] if self._lacks_nodes() else []
            again = " && ".join([*first, f"{self.command} --again-failed"])
            self.ui.note(f"to repeat what failed: {again}", whole=True)
        if self.before and metric:
            self.ui.say(f"compared with {self.before.cluster}, by {metric}:")
            for difference in differences:
                self.ui.say(f"  {difference}")
            self.ui.table(
                ["point", "before", "now", "ratio", "95 % interval", "p", "verdict"],
                [_compared(one, unit) for one in compared],
            )
            count = max((one.chance.count for one in compared if one.chance), default=0)
            if count > 1:
                self.ui.say(families.told(count))
        there = self.folder.path.exists()
        self.ui.say(f"{'results:' if there else 'results would be in'} {self.folder.path}")

    def _document(
        self, series: Series, compared: list[Comparison], differences: list[Difference]
    ) -> dict[str, Any]:
        progress = series.progress()
        return {
            "differences": [vars(one) for one in differences],
            "comparisons": [one.document() for one in compared],
            "campaign": self.source.name,
            "folder": str(self.folder.path),
            "ended": progress.ended,
            "left": progress.left,
            "seconds_left": progress.seconds,
            "guessed": progress.guessed,
            "node_hours_left": self._node_hours(progress),
            "points": [
                *(_ended(record) for point in self.points for record in series.of(point)),
                *(_due(point, repetition) for repetition, point in series.due()),
            ],
        }


@dataclass
class _Telling:
    ui: UI
    campaign: _Campaign
    series: Series
    show: Callable[[str], None] = lambda _: None
    warned: bool = False

    def begins(self, point: Point, repetition: int) -> Callable[[str], None]:
        """Show which point begins; returns what shows how far it is."""
        estimate, name = Estimate(), f"{point.id}, repetition {repetition}"
        self.show(f"{name} starts")

        def tell(line: str) -> None:
            progress = estimate.read(line)
            if progress is not None:
                self.show(f"{name}: {progress}")

        return tell

    def ends(self, record: Record) -> None:
        """Say what a point gave, and how much is left."""
        progress, job = self.series.progress(), self.campaign.job
        metric = self.campaign.metric
        value = record.metrics.get(metric)
        said = record.reason
        if record.status == "ok" and isinstance(value, int | float):
            said = f"{metric} {figures.written(value, job.metrics[metric].unit)}"
        self.ui.mark(
            "pass" if record.status == "ok" else "fail",
            f"{progress.ended} of {progress.ended + progress.left}: {record.id}, repetition "
            f"{record.repetition}: {said or record.status} ({_time(progress)})",
        )

    def warns(self, fault: str) -> None:
        """Say that a link is not as it is declared, and what repairs it."""
        self.warned = True
        message = f"a link has not got its declared rate back: {fault}"
        self.ui.error(message, f"gpubed up {self.campaign.cluster.name}")


def _discard(_line: str) -> None:
    pass


def _ended(record: Record) -> dict[str, Any]:
    kept = ("id", "status", "reason", "repetition", "settings", "run_id", "run_dir", "seconds")
    return {**{key: getattr(record, key) for key in kept}, "metrics": record.metrics}


def _due(point: Point, repetition: int) -> dict[str, Any]:
    return {
        "id": point.id,
        "status": "pending",
        "repetition": repetition,
        "settings": dict(point.settings),
        "run_id": "",
        "metrics": {},
    }


def _row(series: Series, point: Point, metric: str, unit: str) -> list[object]:
    values, found = series.values(point, metric), series.of(point)
    failed = sum(record.status == "failed" for record in found)
    due = sum(one.id == point.id for _, one in series.due())
    status = f"{failed} failed" if failed else f"{due} pending" if due and found else ""
    status = status or ("ok" if found else "pending")
    measured = [_mean(values, unit), len(values)] if metric else []
    return [*point.settings.values(), *measured, status]


def _compared(one: Comparison, unit: str) -> list[object]:
    means = ["" if mean is None else figures.written(mean, unit) for mean in (one.before, one.now)]
    ratio = "" if one.ratio is None else f"{one.ratio:.3f}"
    interval = bounds(one.low, one.high)
    return [one.id, *means, ratio, interval, families.written(one.chance), one.verdict]


def _mean(values: list[float], unit: str) -> str:
    if not values:
        return ""
    half = intervals.half_width(values)
    spread = "" if half is None else f" ± {figures.written(float(f'{half:.2g}'), unit)}"
    return figures.written(statistics.fmean(values), unit) + spread


def _time(progress: Progress) -> str:
    seconds, guessed = progress.seconds, progress.guessed
    if seconds is None:
        return "time left unknown until one has ended well"
    left = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
    left = left if seconds < 7200 else f"{seconds / 3600:.1f} h"
    guess = f", {guessed} of {progress.left} runs guessed from the others" if guessed else ""
    return f"{left} left{guess}"

"""Runs the points of a campaign that have not ended yet, one after the other."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpubed.campaigns import adoption, matrix, provenance
from gpubed.campaigns.file import Campaign, Environment, Stop
from gpubed.campaigns.matrix import Point
from gpubed.campaigns.records import Changed, Folder, Key, Record
from gpubed.checks import network, plain
from gpubed.checks.context import Context
from gpubed.configuration import health
from gpubed.core import intervals
from gpubed.core.errors import GpubedError
from gpubed.jobs import execution, main_metric, trials
from gpubed.jobs.job_result import JobResult
from gpubed.jobs.runs import record as runs
from gpubed.jobs.runs.record import Choice, Request
from gpubed.jobs.trials import summarize
from gpubed.nodes import rates, selection
from gpubed.nodes.allocation import Allocation
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.ssh import SSH

LinkRate = dict[str, Any]
"""One direction between two nodes: `src`, `dst`, `measured_bps` and its bounds in bit/s."""


@dataclass(frozen=True)
class Progress:
    """How much of a campaign is left, and how long that takes.

    Attributes:
        ended: Repetitions that have ended.
        left: Repetitions that are due, at most: `stop` may end a point earlier.
        seconds: Estimated duration of those; None while no duration is known.
        guessed: Repetitions left of points without a successful one, estimated by the mean of
            the other points.
    """

    ended: int
    left: int
    seconds: float | None
    guessed: int = 0


@dataclass
class Series:
    """A campaign's repetitions: those that have ended, and those that are due.

    Attributes:
        again: Ended repetitions that are due again.
        earlier: Durations in seconds of the job's earlier runs, used for the estimate until a
            repetition of the campaign has succeeded.
    """

    campaign: Campaign
    points: list[Point]
    ended: dict[Key, Record] = field(default_factory=dict)
    again: set[Key] = field(default_factory=set)
    earlier: Sequence[float] = ()

    def due(self) -> Iterator[tuple[int, Point]]:
        """Yield the repetitions that are due; each is checked just before it is yielded."""
        for repetition, point in self._rounds():
            if self._is_due(point, repetition):
                yield repetition, point

    def progress(self) -> Progress:
        """Return how far the campaign is."""
        rounds = self._rounds()
        due = Counter(one.id for repetition, one in rounds if self._is_due(one, repetition))
        ended, left = len(self.ended.keys() - self.again), due.total()
        took = {}
        for point in self.points:  # a failed run may have ended early
            if own := [one.seconds for one in self.of(point) if one.status == "ok"]:
                took[point.id] = statistics.fmean(own)
        known = [*took.values()] or self.earlier
        guessed = sum(count for id_, count in due.items() if id_ not in took)
        if guessed and not known:
            return Progress(ended, left, None)
        mean = statistics.fmean(known) if known else 0.0
        seconds = sum(count * took.get(id_, mean) for id_, count in due.items())
        return Progress(ended, left, seconds, guessed)

    def of(self, point: Point) -> list[Record]:
        """Return the repetitions of a point that have ended."""
        keys = ((point.id, repetition) for repetition in range(self.campaign.repeat))
        return [self.ended[key] for key in keys if key in self.ended]

    def values(self, point: Point, metric: str) -> list[float]:
        """Return a metric's values from the successful repetitions of a point."""
        records = [record for record in self.of(point) if record.status == "ok"]
        return [
            float(record.metrics[metric])
            for record in records
            if metric in summarize([record.metrics])
        ]

    def gives(self, metric: str) -> bool:
        """Say whether any successful repetition gave a number for a metric."""
        good = (record for record in self.ended.values() if record.status == "ok")
        return any(main_metric.is_number(record.metrics.get(metric)) for record in good)

    def failed(self) -> list[Record]:
        """Return the repetitions that failed."""
        return [record for record in self.ended.values() if record.status == "failed"]

    def on_devices(self) -> dict[str, set[str]]:
        """Return the ids of the points by device, as far as the job reports devices."""
        found = dict[str, set[str]]()
        for record in self.ended.values():
            for device in record.devices if record.status == "ok" else ():
                found.setdefault(device, set()).add(record.id)
        return found

    def _rounds(self) -> Iterator[tuple[int, Point]]:
        return matrix.rounds(self.points, self.campaign.repeat, self.campaign.seed)

    def _is_due(self, point: Point, repetition: int) -> bool:
        key = (point.id, repetition)
        if key in self.ended and key not in self.again:
            return False
        stop = self.campaign.stop
        return stop is None or not is_narrow(stop, self.values(point, stop.metric))


def earlier(cluster: Cluster, job: str) -> list[float]:
    """Return the durations in seconds of a job's successful runs on a cluster."""
    return [
        run.seconds
        for run in runs.every(cluster.paths)[0].values()
        if (run.request.job, run.origin.uuid) == (job, cluster.allocation.uuid)
        if run.state == "ok" and not run.by and run.seconds is not None
    ]


def is_narrow(stop: Stop, values: list[float]) -> bool:
    """Say whether the mean's 95 % interval is as narrow as `stop` asks for."""
    half = intervals.half_width(values)
    if half is None or len(values) < stop.at_least:
        return False
    return 2 * half <= stop.relative_width * abs(statistics.fmean(values))


def measure_links(cluster: Cluster) -> list[LinkRate]:
    """Measure both directions of links by a short stream, in pairs of all nodes with ranks."""
    paths, allocation = cluster.paths, cluster.allocation
    held, nodes = allocation.experiment, allocation.with_ranks
    if held is None or held.rate_bps is None or len(nodes) < 2:
        return []
    with ExitStack() as stack:
        needed = {node.name: node for node in (allocation.head, *nodes)}
        sessions = {name: stack.enter_context(SSH(node, paths)) for name, node in needed.items()}
        return plain.in_pairs(Context(cluster, sessions), nodes, held.rate_bps)


@dataclass(frozen=True)
class Bench:
    """A campaign that runs on a cluster.

    Attributes:
        nodes: Names of the nodes that the campaign was begun with; empty on a testbed of jobs.
        kin: Prefix of the campaign's set names.
        metric: The job's main metric; empty where the job reports no numbers.
        requires: Called with the container, if any, and the cluster of usable nodes; raises
            `Changed` if they differ from those that the campaign was begun with.
        begins: Called when a repetition begins; returns the callback for the job's lines.
        ends: Called with the record of each repetition.
        warns: Called with the reason why a link could not be restored to its declared rate.
    """

    cluster: Cluster
    series: Series
    folder: Folder
    nodes: list[str]
    kin: str
    made_with: Mapping[str, str]
    metric: str
    requires: Callable[[str | None, Cluster], None]
    begins: Callable[[Point, int], Callable[[str], None]]
    ends: Callable[[Record], None]
    warns: Callable[[str], None]

    def run(self) -> None:
        """Run the repetitions that are due, then restore the links' declared rate.

        Raises:
            Changed: Points would be made with something else than the earlier ones.
        """
        paths = self.cluster.paths
        links = rates.Links(paths, self.cluster.allocation)
        # A run that has a record already, such as one without the metric, is not adopted again.
        told = {record.run_id for record in self.series.ended.values()}
        ended_well = {
            key: run
            for key, run in adoption.ended_well(paths, self.kin, self.made_with).items()
            if run.run_id not in told
        }
        try:
            for repetition, point in self.series.due():
                run = ended_well.get((point.id, repetition))
                self._keep(
                    adoption.record(paths, point, run)
                    if run
                    else self._record(links, point, repetition)
                )
            # A metric that a later repetition gave is required of the earlier ones, too.
            for record in [*self.series.ended.values()]:
                if record.status == "ok" and self._lack(record):
                    self._keep(record)
        finally:
            for fault in links.restore():
                self.warns(fault)

    def _keep(self, record: Record) -> None:
        if record.status == "ok" and (why := self._lack(record) or self._mixed(record)):
            record = record.model_copy(update={"status": "failed", "reason": why})
        self.folder.keep(record)
        self.series.ended[record.key] = record
        self.series.again.discard(record.key)
        self.ends(record)

    def _lack(self, record: Record) -> str:
        """Return why a repetition lacks a required number; empty if it does not."""
        stop = self.series.campaign.stop
        if stop and stop.metric not in summarize([record.metrics]):
            return f"it gave no {stop.metric}, which stop asks for"
        value = record.metrics.get(self.metric)
        if not self.metric or main_metric.is_number(value):
            return ""
        # A metric that no point has does not apply; a report judges it the same way.
        due = value is not None or self.series.gives(self.metric)
        return f"it gave no {self.metric}" if due else ""

    def _mixed(self, record: Record) -> str:
        """Return why a point's mean would mix devices; empty if it would not.

        A testbed that chooses the machines may choose another kind each time.
        """
        if mixed := trials.mixed(record.devices):
            return mixed
        others = {
            device
            for one in self.series.ended.values()
            if one.id == record.id and one.key != record.key and one.status == "ok"
            for device in one.devices
        }
        if not others or not record.devices or others == {*record.devices}:
            return ""
        was = "; ".join(sorted(others))
        return f"it computed on {record.devices[0]}, and the point's other repetitions on {was}"

    def _record(self, links: rates.Links, point: Point, repetition: int) -> Record:
        usable, left_out = health.usable(self.cluster)
        told = self.begins(point, repetition)
        began, started = provenance.now(), time.monotonic()
        run_dir, image, metrics = "", "", dict[str, Any]()
        carried = list[LinkRate]()
        devices = list[str]()
        try:
            self.requires(self._environment(point).container, usable)
            chosen = self._chosen(links, point, usable)
            if point.rate_bps is not None:
                carried = measure_links(chosen)
            held = chosen.allocation.experiment
            judged = (
                network.link(chosen.plan, row, (held and held.rate_bps) or 0) for row in carried
            )
            failures = [
                f"link {link.node} carries {link.value} {link.unit} before the run, which must be "
                f"{link.limit}"
                for link in judged
                if link.result == "fail"
            ]
            if not failures:
                result = self._result(point, repetition, chosen, told, carried)
                run_dir, image, metrics = result.run_dir, result.image, result.metrics
                devices = result.devices
                failures = [*result.failures, *self._others(point, image)]
        except Changed:
            raise
        except GpubedError as error:
            failures = [error.message]
            failures += [f"{node.node} is left out: {node.reason}" for node in left_out]
        return Record(
            id=point.id,
            repetition=repetition,
            status="failed" if failures else "ok",
            reason="; ".join(failures),
            settings=dict(point.settings),
            run_id=Path(run_dir).name,
            run_dir=run_dir,
            started=began,
            seconds=round(time.monotonic() - started, 3),
            metrics=metrics,
            image=image,
            links=[dict(row) for row in carried],
            devices=devices,
        )

    def _environment(self, point: Point) -> Environment:
        return self.series.campaign.environments.get(point.environment, Environment())

    def _others(self, point: Point, image: str) -> list[str]:
        """Return a failure if ranks ran in another image than the campaign was begun with."""
        begun = [id_ for name, id_ in self.made_with.items() if name.startswith(provenance.IMAGE)]
        if not image or not begun or image in begun:
            return []
        name = self._environment(point).container or "of the job"
        return [f"ranks ran in {image}, and image {name} was another when the campaign was begun"]

    def _chosen(self, links: rates.Links, point: Point, usable: Cluster) -> Cluster:
        if not self.nodes:
            return usable
        # A lost node must not shrink the measurement, and its substitute may be of another kind.
        nodes = point.nodes if point.nodes or point.ranks else len(self.nodes)
        begun = _only(self.cluster.allocation, self.nodes)
        chosen = selection.choose(begun, nodes=nodes, ranks=point.ranks)
        names = {node.name for node in usable.allocation.nodes}
        if lost := [node.name for node in chosen.with_ranks if node.name not in names]:
            raise GpubedError(f"{', '.join(lost)} may not be used, and no other stands in for it")
        there = tuple(node for node in chosen.nodes if node.name in names)
        chosen = chosen.model_copy(update={"nodes": there})
        links.hold(chosen.with_ranks, point.rate_bps)
        return replace(usable, allocation=_at_rate(chosen, point.rate_bps))

    def _result(
        self,
        point: Point,
        repetition: int,
        chosen: Cluster,
        told: Callable[[str], None],
        carried: Iterable[LinkRate],
    ) -> JobResult:
        campaign, environment = self.series.campaign, self._environment(point)
        request = Request(
            job=campaign.job,
            settings=point.arguments,
            choice=Choice(nodes=point.nodes, ranks=point.ranks),
            container=environment.container,
            launcher=environment.launcher,
        )
        return execution.run(
            chosen,
            request,
            told,
            execution.Terms(
                set_=adoption.set_of(self.kin, point.id),
                repetition=repetition,
                alone=True,
                links={f"{row['src']}>{row['dst']}": row["measured_bps"] for row in carried},
            ),
        )


def _only(allocation: Allocation, names: list[str]) -> Allocation:
    nodes = (
        node if node.name in names else node.model_copy(update={"slots": 0})
        for node in allocation.nodes
    )
    return allocation.model_copy(update={"nodes": tuple(nodes)})


def _at_rate(allocation: Allocation, bps: int | None) -> Allocation:
    if bps is None or allocation.experiment is None:
        return allocation
    network = allocation.experiment.model_copy(update={"rate_bps": bps})
    return allocation.model_copy(update={"experiment": network})

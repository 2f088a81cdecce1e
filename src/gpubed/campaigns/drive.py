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
    """What is still to be run, and how long that takes.

    Attributes:
        ended: Repetitions that have ended.
        left: Repetitions that have not, at most: points may be known well enough before.
        seconds: How long those take, by what the ended ones took; None where none has ended well.
        guessed: How many of those that are left are of points of which none has ended well: the
            mean of the others stands for them.
    """

    ended: int
    left: int
    seconds: float | None
    guessed: int = 0


@dataclass
class Series:
    """What is known of a campaign: every repetition that has ended, and which are due.

    Attributes:
        again: Those that failed and are due all the same.
        earlier: Seconds that runs of the job took before it, for as long as none of its own has
            ended well.
    """

    campaign: Campaign
    points: list[Point]
    ended: dict[Key, Record] = field(default_factory=dict)
    again: set[Key] = field(default_factory=set)
    earlier: Sequence[float] = ()

    def due(self) -> Iterator[tuple[int, Point]]:
        """Give the repetitions that are due, by what has ended when each is asked for."""
        for repetition, point in self._rounds():
            if self._is_due(point, repetition):
                yield repetition, point

    def progress(self) -> Progress:
        """Return how far it is."""
        rounds = self._rounds()
        due = Counter(one.id for repetition, one in rounds if self._is_due(one, repetition))
        ended, left = len(self.ended.keys() - self.again), due.total()
        took = {}
        for point in self.points:  # what failed may have ended anywhere
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
        """Return what the repetitions of a point that did not fail gave for a metric."""
        records = [record for record in self.of(point) if record.status == "ok"]
        return [
            float(record.metrics[metric])
            for record in records
            if metric in summarize([record.metrics])
        ]

    def gives(self, metric: str) -> bool:
        """Say whether any repetition that did not fail gave a metric."""
        good = (record for record in self.ended.values() if record.status == "ok")
        return any(main_metric.is_number(record.metrics.get(metric)) for record in good)

    def failed(self) -> list[Record]:
        """Return the repetitions that failed."""
        return [record for record in self.ended.values() if record.status == "failed"]

    def on_devices(self) -> dict[str, set[str]]:
        """Return the points by the devices on which they computed, as far as their job says."""
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
    """Return how many seconds the runs of a job took that ended well on a cluster."""
    return [
        run.seconds
        for run in runs.every(cluster.paths)[0].values()
        if (run.request.job, run.origin.uuid) == (job, cluster.allocation.uuid)
        if run.state == "ok" and not run.by and run.seconds is not None
    ]


def is_narrow(stop: Stop, values: list[float]) -> bool:
    """Say whether the mean's 95 % interval is as narrow as a campaign asks for."""
    half = intervals.half_width(values)
    if half is None or len(values) < stop.at_least:
        return False
    return 2 * half <= stop.relative_width * abs(statistics.fmean(values))


def measure_links(cluster: Cluster) -> list[LinkRate]:
    """Measure both directions of each link of the nodes with ranks, by a short stream.

    Nodes are measured in pairs, each in one pair at least: a link is what connects a node.

    Raises:
        GpubedError: A node does not answer, or could not measure.
    """
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
    """A campaign at work on a cluster.

    Attributes:
        nodes: The nodes that it was begun with, by name; none where the testbed has none.
        kin: What the names of its sets of repetitions begin with.
        metric: What stands for a point; empty where the job has no numbers.
        requires: Refuses a point that would be made with something else than the campaign was
            begun with, by the container that ranks run in, if any, and the nodes that are well.
        begins: Told which repetition of which point begins; returns what takes the job's lines.
        warns: Told why a link could not be put back to its declared rate.
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
        """Run what is due, and leave links at their declared rate.

        Raises:
            Changed: Points would be made with something else than those before.
            GpubedError: The head is not well, so that nothing can start.
        """
        paths = self.cluster.paths
        links = rates.Links(paths, self.cluster.allocation)
        # A run that a point has named already, such as one that gave too little, is none of them.
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
            # What others gave since was due of those before them, too.
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
        """Say that a repetition gave no number where one was due; empty where it did."""
        stop = self.series.campaign.stop
        if stop and stop.metric not in summarize([record.metrics]):
            return f"it gave no {stop.metric}, which stop asks for"
        value = record.metrics.get(self.metric)
        if not self.metric or main_metric.is_number(value):
            return ""
        # Where no point has it, it does not apply; a report looks at it the same way.
        due = value is not None or self.series.gives(self.metric)
        return f"it gave no {self.metric}" if due else ""

    def _mixed(self, record: Record) -> str:
        """Say that a point's mean would be of different devices; empty where it would not.

        A testbed that chooses machines by itself may choose one of another kind each time.
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
        """Say that ranks ran in another image than the campaign was begun with."""
        begun = [id_ for name, id_ in self.made_with.items() if name.startswith(provenance.IMAGE)]
        if not image or not begun or image in begun:
            return []
        name = self._environment(point).container or "of the job"
        return [f"ranks ran in {image}, and image {name} was another when the campaign was begun"]

    def _chosen(self, links: rates.Links, point: Point, usable: Cluster) -> Cluster:
        """Return the cluster with the nodes of a point, once their links have its rate."""
        if not self.nodes:
            return usable
        # A node that was lost must make no smaller measurement of this one, nor may another
        # take its place, which may be of another kind.
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
    """Return an allocation on which ranks start on some nodes only."""
    nodes = (
        node if node.name in names else node.model_copy(update={"slots": 0})
        for node in allocation.nodes
    )
    return allocation.model_copy(update={"nodes": tuple(nodes)})


def _at_rate(allocation: Allocation, bps: int | None) -> Allocation:
    """Return the allocation as the job shall see it: with the rate that its links have now."""
    if bps is None or allocation.experiment is None:
        return allocation
    network = allocation.experiment.model_copy(update={"rate_bps": bps})
    return allocation.model_copy(update={"experiment": network})

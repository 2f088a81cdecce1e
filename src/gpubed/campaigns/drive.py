"""Runs the points of a campaign that have not ended yet, one after the other."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from gpubed.campaigns import matrix, predictions, provenance, records
from gpubed.campaigns.file import Campaign, Environment, Source, Stop
from gpubed.campaigns.matrix import Point
from gpubed.campaigns.predictions import Foretold
from gpubed.campaigns.records import Changed, Folder, Header, Key, Record
from gpubed.checks import network, tcp_links
from gpubed.checks.context import Context
from gpubed.configuration import health
from gpubed.core import intervals
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.jobs import execution, trials
from gpubed.jobs.jobfile import Job
from gpubed.jobs.metrics import main_metric
from gpubed.jobs.runs import record as runs
from gpubed.jobs.runs.record import Choice, Request
from gpubed.jobs.runs.record import Record as Run
from gpubed.nodes import link_rates, selection
from gpubed.nodes.allocation import Allocation, Cluster
from gpubed.nodes.ssh import SSH

LinkRate = dict[str, Any]
"""One direction between two nodes: `src`, `dst`, `measured_bps` and its bounds in bit/s."""


@dataclass(frozen=True)
class Progress:
    """How many repetitions have ended, are left at most, and how long these take, if known.

    Attributes:
        guessed: Repetitions left of points without a successful one and without a prediction,
            estimated by the mean of the other points.
        predicted: Repetitions left whose time is predicted.
    """

    ended: int
    left: int
    seconds: float | None
    guessed: int = 0
    predicted: int = 0


@dataclass
class Series:
    """A campaign's repetitions.

    Attributes:
        again: Repetitions that have ended, and are to be run again.
        earlier: Durations in seconds of the job's earlier runs, used for the estimate until a
            repetition of the campaign has succeeded.
        foretold: Predictions by the id of a point, for the estimate until it has run.
    """

    campaign: Campaign
    points: list[Point]
    ended: dict[Key, Record] = field(default_factory=dict)
    again: set[Key] = field(default_factory=set)
    earlier: Sequence[float] = ()
    foretold: Mapping[str, Foretold] = field(default_factory=dict)

    def due(self) -> Iterator[tuple[int, Point]]:
        """Yield the repetitions that are due, judged by the results up to then."""
        for repetition, point in self._rounds():
            if self._is_due(point, repetition):
                yield repetition, point

    def progress(self) -> Progress:
        """Return how far the campaign is."""
        rounds = self._rounds()
        due = Counter(point.id for repetition, point in rounds if self._is_due(point, repetition))
        ended, left = len(self.ended.keys() - self.again), due.total()
        took = {}
        for point in self.points:  # a failed run may have ended early
            if own := [record.seconds for record in self.of(point) if record.status == "ok"]:
                took[point.id] = statistics.fmean(own)
        known = [*took.values()] or self.earlier
        told = {id_: one.seconds for id_, one in self.foretold.items() if one.seconds}
        predicted = sum(due[id_] for id_ in told if id_ not in took)
        took = told | took
        guessed = sum(count for id_, count in due.items() if id_ not in took)
        if guessed and not known:
            return Progress(ended, left, None)
        mean = statistics.fmean(known) if known else 0.0
        seconds = sum(count * took.get(id_, mean) for id_, count in due.items())
        return Progress(ended, left, seconds, guessed, predicted)

    def of(self, point: Point) -> list[Record]:
        """Return the repetitions of a point that have ended."""
        keys = ((point.id, repetition) for repetition in range(self.campaign.repeat))
        return [self.ended[key] for key in keys if key in self.ended]

    def values(self, point: Point, metric: str) -> list[float]:
        """Return a metric's values from the successful repetitions of a point."""
        good = (record.figures for record in self.of(point) if record.status == "ok")
        return [figures[metric] for figures in good if metric in figures]

    def failed(self) -> list[Record]:
        """Return the repetitions that failed."""
        return [record for record in self.ended.values() if record.status == "failed"]

    def on_devices(self) -> dict[str, set[str]]:
        """Return the ids of the points by device; empty if the job reports no devices."""
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


def is_narrow(stop: Stop, values: list[float]) -> bool:
    """Return whether the mean's 95 % interval is as narrow as `stop` requires."""
    half = intervals.half_width(values)
    if half is None or len(values) < stop.at_least:
        return False
    return 2 * half <= stop.relative_width * abs(statistics.fmean(values))


def measure_links(cluster: Cluster) -> list[LinkRate]:
    """Measure links by short streams in both directions, between pairs of the nodes with ranks."""
    paths, allocation = cluster.paths, cluster.allocation
    network, nodes = allocation.experiment, allocation.with_ranks
    if network is None or network.rate_bps is None or len(nodes) < 2:
        return []
    with ExitStack() as stack:
        hosts = {node.name: node for node in (allocation.head, *nodes)}
        sessions = {name: stack.enter_context(SSH(node, paths)) for name, node in hosts.items()}
        return tcp_links.in_pairs(Context(cluster, sessions), nodes, network.rate_bps)


def ended_well(paths: ClusterPaths, kin: str, made_with: Mapping[str, str]) -> dict[Key, Run]:
    """Return a campaign's successful and unchanged runs, by point and repetition.

    Recovers runs whose results were not recorded because `bench` was killed.

    Args:
        kin: The prefix of the set names of the campaign's runs.
        made_with: The provenance of the campaign; other runs are left out.
    """
    found = {}
    images = [id_ for name, id_ in made_with.items() if name.startswith(provenance.IMAGE)]
    for run in runs.every(paths)[0].values():
        id_ = run.set.removeprefix(f"{kin}.")
        if run.repetition is None or id_ == run.set or run.state != "ok":
            continue
        origin, folder = run.origin, paths.runs / run.run_id
        same_job = origin.job_sha256 == made_with.get("the job's files", origin.job_sha256)
        if not same_job or (origin.image and images and origin.image not in images):
            continue
        if not (folder / runs.SUMS).exists():  # killed before its seal
            runs.seal(folder)
        if not runs.unsealed(folder):
            found[id_, run.repetition] = run
    return found


class Listener(Protocol):
    """Receives the events of a campaign."""

    def begins(self, point: Point, repetition: int) -> Callable[[str], None]:
        """Handle the start of a repetition; return a function that receives the job's lines."""

    def ends(self, record: Record) -> None:
        """Handle the end of a repetition."""

    def warns(self, fault: str) -> None:
        """Handle the reason why a link could not be restored to its declared rate."""


class Bench:
    """A campaign on a cluster.

    Attributes:
        command: The command line that goes on with the campaign.
        metric: The metric that a point is judged by; empty if the job reports no numbers.
    """

    header: Header
    listener: Listener

    def __init__(self, cluster: Cluster, source: Source, job: Job, command: str) -> None:
        self.cluster, self.source, self.job, self.command = cluster, source, job, command
        self.points = matrix.expand(source, job)
        self.folder = Folder(cluster.paths.campaigns / source.name)
        stop = source.campaign.stop
        self.metric = main_metric(stop.metric if stop else None, job.numbers)
        self.series = Series(source.campaign, self.points)

    def look(self, *, new: bool) -> None:
        """Read the records, and check cluster and nodes; write nothing.

        Raises:
            Unreadable: A record is damaged, or belongs to none of the points.
        """
        header = None if new else self._begun()
        if header is None:
            usable, _ = health.usable(self.cluster)
            self._require_room(usable.allocation)
            self._found_on_nodes(usable)
        else:
            # Images and datasets are compared before each point.
            unseen = (provenance.IMAGE, provenance.DATASET)
            self._require_same(header, self._made_with(self.cluster), unseen)
            self.series.ended, faults = self.folder.ended(header)
            for fault in faults.values():
                hint = f"{self.command} --again-failed moves it away and runs that repetition again"
                raise type(fault)(fault.message, hint)
        if not any(record.status == "ok" for record in self.series.ended.values()):
            same = (self.source.campaign.job, self.cluster.allocation.uuid)
            self.series.earlier = [
                run.seconds
                for run in runs.every(self.cluster.paths)[0].values()
                if (run.request.job, run.origin.uuid) == same
                if run.state == "ok" and not run.by and run.seconds is not None
            ]
        if header is None:
            self.series.foretold = self._foretold()
        else:
            self.series.foretold = predictions.read(self.folder.path)

    def begin(self, *, new: bool, again_failed: bool) -> list[str]:
        """Write the campaign's header, so that `run` can start; return notes for the user."""
        notes = []
        if again_failed and not new and (header := self._begun()):
            self.folder.put_points_aside(self.folder.ended(header)[1])
        self.look(new=new)
        if new and (aside := self.folder.put_aside(datetime.now(UTC))):
            notes.append(f"earlier results are kept in {aside}")
        if again_failed:
            self.series.again = {record.key for record in self.series.failed()}
        if (header := self._begun()) is None:
            usable, left_out = health.usable(self.cluster)
            notes += [f"{node.node} is left out: {node.reason}" for node in left_out]
            made = {**self._made_with(usable), **self._found_on_nodes(usable)}
            document = provenance.header(usable, self.source, self.points, self.command, made)
            self.folder.begin(document)
            predictions.write(self.folder.path, self.series.foretold, datetime.now(UTC))
            header = self._begun()
        assert header  # noqa: S101  # it has just been written
        self.header = header
        return notes

    def run(self, listener: Listener) -> None:
        """Run the repetitions that are due, then restore the links' declared rate.

        Raises:
            Changed: Points would have another provenance than the earlier ones.
        """
        self.listener, paths = listener, self.cluster.paths
        links = link_rates.Links(paths, self.cluster.allocation)
        # A run that has a record already, such as one without the metric, is not adopted again.
        recorded = {record.run_id for record in self.series.ended.values()}
        unrecorded = {
            key: run
            for key, run in ended_well(paths, self.header.kin, self.header.made_with).items()
            if run.run_id not in recorded
        }
        try:
            for repetition, point in self.series.due():
                if run := unrecorded.get((point.id, repetition)):
                    self._keep(self._adopted(point, run))
                else:
                    self._keep(self._measured(links, point, repetition))
            # A metric that any repetition gave is required of the earlier ones, too.
            for record in [*self.series.ended.values()]:
                if record.status == "ok" and self._lack(record):
                    self._keep(record)
        finally:
            for fault in links.restore():
                listener.warns(fault)

    def _require_room(self, usable: Allocation) -> None:
        matrix.require_room(self.source, self.cluster.allocation, usable)

    def _foretold(self) -> dict[str, Foretold]:
        name = self.source.campaign.job
        values = [self.job.values(name, point.arguments) for point in self.points]
        return predictions.foretell(self.cluster, self.points, values)

    def _begun(self) -> Header | None:
        header = self.folder.begun()
        one_host = self.cluster.allocation.one_host
        return header and header.counting(self.points, one_host=one_host)

    def _made_with(self, cluster: Cluster) -> dict[str, str]:
        return provenance.made_with(cluster, self.source.campaign.job)

    def _found_on_nodes(self, usable: Cluster, *points: Point) -> dict[str, str]:
        chosen = [self._environment(point).container for point in points or self.points]
        images = dict.fromkeys(image or self.job.container for image in chosen)
        return provenance.found_on_nodes(usable, self.source, self.job, filter(None, images))

    def _require_same(
        self, header: Header, made_with: Mapping[str, str], unseen: tuple[str, ...]
    ) -> None:
        uuid = self.cluster.allocation.uuid
        records.require_same(header, self.source, self.points, uuid, made_with, unseen)

    def _environment(self, point: Point) -> Environment:
        return self.source.campaign.environments.get(point.environment, Environment())

    def _keep(self, record: Record) -> None:
        if record.status == "ok" and (why := self._lack(record) or self._mixed(record)):
            record = record.model_copy(update={"status": "failed", "reason": why})
        self.folder.keep(record)
        self.series.ended[record.key] = record
        self.series.again.discard(record.key)
        self.listener.ends(record)

    def _lack(self, record: Record) -> str:
        """Return why a repetition lacks a required number; empty if it does not."""
        stop = self.source.campaign.stop
        if stop and stop.metric not in record.figures:
            return f"it gave no {stop.metric}, which stop asks for"
        if not self.metric or self.metric in record.figures:
            return ""
        # A metric that no point has does not apply; a report judges it the same way.
        good = (one for one in self.series.ended.values() if one.status == "ok")
        required = record.metrics.get(self.metric) is not None or any(
            self.metric in one.figures for one in good
        )
        return f"it gave no {self.metric}" if required else ""

    def _mixed(self, record: Record) -> str:
        """Return why a point's mean would mix devices; empty if it would not.

        Testbeds that choose the machines may choose another kind for each repetition.
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

    def _adopted(self, point: Point, run: Run) -> Record:
        """Return the record for a run that ended before it was recorded."""
        links = run.origin.rates_bps.items() if point.rate_bps is not None else ()
        return Record(
            id=point.id,
            repetition=run.repetition or 0,
            status="ok",
            settings=dict(point.settings),
            run_id=run.run_id,
            run_dir=str(self.cluster.paths.runs / run.run_id),
            started=run.started.isoformat(timespec="milliseconds"),
            seconds=run.seconds or 0.0,
            metrics=run.metrics,
            image=run.origin.image,
            links=[
                {"src": ends[0], "dst": ends[-1], "measured_bps": rate}
                for ends, rate in ((link.split(">"), rate) for link, rate in links)
            ],
            devices=list(run.devices),
        )

    def _measured(self, links: link_rates.Links, point: Point, repetition: int) -> Record:
        """Run a repetition; a failure of the cluster counts as a failure of the repetition."""
        usable, left_out = health.usable(self.cluster)
        on_line = self.listener.begins(point, repetition)
        began, started = provenance.now(), time.monotonic()
        run_dir, image, metrics = "", "", dict[str, Any]()
        carried, devices = list[LinkRate](), list[str]()
        try:
            # The images of other points are compared before those points.
            now = {**self._made_with(self.cluster), **self._found_on_nodes(usable, point)}
            self._require_same(self.header, now, (provenance.IMAGE,))
            chosen = self._chosen(links, point, usable)
            if point.rate_bps is not None and point.link_bps is None:
                carried = measure_links(chosen)
            if not (failures := _uncarried(chosen, carried)):
                environment = self._environment(point)
                request = Request(
                    job=self.source.campaign.job,
                    settings=point.arguments,
                    choice=Choice(nodes=point.nodes, ranks=point.ranks),
                    container=environment.container,
                    launcher=environment.launcher,
                )
                terms = execution.Terms(
                    set_=f"{self.header.kin}.{point.id}",
                    repetition=repetition,
                    alone=True,
                    links={f"{row['src']}>{row['dst']}": row["measured_bps"] for row in carried},
                )
                result = execution.run(chosen, request, on_line, terms)
                run_dir, image, metrics = result.run_dir, result.image, result.metrics
                devices = result.devices
                failures = result.failures
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

    def _chosen(self, links: link_rates.Links, point: Point, usable: Cluster) -> Cluster:
        if not (with_ranks := self.header.with_ranks):
            return usable
        # Always the same nodes: without a lost node, or with another kind of node in its place, the
        # repetitions could not be compared.
        granted = self.cluster.allocation
        nodes = (
            node if node.name in with_ranks else node.model_copy(update={"slots": 0})
            for node in granted.nodes
        )
        begun = granted.model_copy(update={"nodes": tuple(nodes)})
        count = point.nodes if point.nodes or point.ranks else len(with_ranks)
        chosen = selection.choose(begun, nodes=count, ranks=point.ranks)
        names = {node.name for node in usable.allocation.nodes}
        if lost := [node.name for node in chosen.with_ranks if node.name not in names]:
            raise GpubedError(f"{', '.join(lost)} may not be used, and no other stands in for it")
        remaining = tuple(node for node in chosen.nodes if node.name in names)
        chosen = chosen.model_copy(update={"nodes": remaining})
        links.set_rate(chosen.with_ranks, point.rate_bps)
        if chosen.experiment and point.rate_bps is not None:
            network = chosen.experiment.model_copy(update={"rate_bps": point.rate_bps})
            chosen = chosen.model_copy(update={"experiment": network})
        return replace(usable, allocation=chosen)


def _uncarried(chosen: Cluster, carried: Sequence[LinkRate]) -> list[str]:
    """Return a failure for each link whose rate is outside the bounds of `verify`."""
    experiment = chosen.allocation.experiment
    declared = (experiment and experiment.rate_bps) or 0
    checks = (network.link(chosen.plan, row, declared) for row in carried)
    return [
        f"link {check.node} carries {check.value} {check.unit} before the run, which must be "
        f"{check.limit}"
        for check in checks
        if check.result == "fail"
    ]

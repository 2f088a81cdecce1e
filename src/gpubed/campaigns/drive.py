"""Runs the points of a campaign that have not ended yet, one after the other."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpubed import health, intervals, jobs, rates, selection
from gpubed.allocation import Allocation
from gpubed.campaigns import matrix, provenance
from gpubed.campaigns.file import Campaign, Environment, Stop
from gpubed.campaigns.matrix import Point
from gpubed.campaigns.records import Folder, Key, Record
from gpubed.errors import GpubedError
from gpubed.paths import ClusterPaths
from gpubed.plan import ClusterPlan
from gpubed.runs.record import Choice, Request
from gpubed.trials import summarize


@dataclass(frozen=True)
class Progress:
    """What is still to be run, and how long that takes.

    Attributes:
        ended: Repetitions that have ended.
        left: Repetitions that have not, at most: points may be known well enough before.
        seconds: How long those take, by what the ended ones took; None before the first.
    """

    ended: int
    left: int
    seconds: float | None


@dataclass
class Series:
    """What is known of a campaign: every repetition that has ended, and which are due."""

    campaign: Campaign
    points: list[Point]
    ended: dict[Key, Record] = field(default_factory=dict)

    def due(self) -> Iterator[tuple[int, Point]]:
        """Give the repetitions that are due, by what has ended when each is asked for."""
        for repetition, point in self._rounds():
            if self._is_due(point, repetition):
                yield repetition, point

    def progress(self) -> Progress:
        """Return how far it is."""
        due = [point for repetition, point in self._rounds() if self._is_due(point, repetition)]
        took = [record.seconds for record in self.ended.values()]
        if not took:
            return Progress(0, len(due), None)
        usual = statistics.fmean(took)
        return Progress(len(took), len(due), sum(self._seconds(point, usual) for point in due))

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

    def failed(self) -> list[Record]:
        """Return the repetitions that failed."""
        return [record for record in self.ended.values() if record.status == "failed"]

    def _seconds(self, point: Point, usual: float) -> float:
        """Return how long a point takes: as long as it took, or else as others did."""
        took = [record.seconds for record in self.of(point)]
        return statistics.fmean(took) if took else usual

    def _rounds(self) -> Iterator[tuple[int, Point]]:
        return matrix.rounds(self.points, self.campaign.repeat, self.campaign.seed)

    def _is_due(self, point: Point, repetition: int) -> bool:
        if (point.id, repetition) in self.ended:
            return False
        stop = self.campaign.stop
        return stop is None or not is_narrow(stop, self.values(point, stop.metric))


def is_narrow(stop: Stop, values: list[float]) -> bool:
    """Say whether the mean's 95 % interval is as narrow as a campaign asks for."""
    half = intervals.half_width(values)
    if half is None or len(values) < stop.at_least:
        return False
    return 2 * half <= stop.relative_width * abs(statistics.fmean(values))


@dataclass(frozen=True)
class Bench:
    """A campaign at work on a cluster.

    Attributes:
        nodes: The nodes that it was begun with, by name; none where the testbed has none.
        kin: What the names of its sets of repetitions begin with.
        begins: Told which repetition of which point begins; returns what takes the job's lines.
        ends: Told what it gave.
        warns: Told why a link could not be put back to its declared rate.
    """

    cluster: ClusterPaths
    plan: ClusterPlan
    allocation: Allocation
    series: Series
    folder: Folder
    nodes: list[str]
    kin: str
    begins: Callable[[Point, int], Callable[[str], None]]
    ends: Callable[[Record], None]
    warns: Callable[[str], None]

    def run(self) -> None:
        """Run what is due, and leave links at their declared rate.

        Raises:
            GpubedError: The head is not well, so that nothing can start.
        """
        links = rates.Links(self.cluster, self.allocation)
        try:
            for repetition, point in self.series.due():
                self._keep(self._record(links, point, repetition))
        finally:
            for fault in links.restore():
                self.warns(fault)

    def _keep(self, record: Record) -> None:
        self.folder.keep(record)
        self.series.ended[record.key] = record
        self.ends(record)

    def _record(self, links: rates.Links, point: Point, repetition: int) -> Record:
        usable, left_out = health.usable(self.cluster, self.plan, self.allocation)
        told = self.begins(point, repetition)
        began, started = provenance.now(), time.monotonic()
        try:
            chosen = self._chosen(links, point, usable)
            result = self._result(point, chosen, told)
            run_dir, metrics, failures = result.run_dir, result.metrics, result.failures
        except GpubedError as error:
            run_dir, metrics, failures = "", {}, [error.message]
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
        )

    def _chosen(self, links: rates.Links, point: Point, usable: Allocation) -> Allocation:
        """Return the nodes of a point, once their links have its rate."""
        if not self.nodes:
            return usable
        # A node that was lost must make no smaller measurement of this one, nor may another
        # take its place, which may be of another kind.
        nodes = point.nodes if point.nodes or point.ranks else len(self.nodes)
        begun = _only(self.allocation, self.nodes)
        chosen = selection.choose(begun, nodes=nodes, ranks=point.ranks)
        names = {node.name for node in usable.nodes}
        if lost := [node.name for node in chosen.with_ranks if node.name not in names]:
            raise GpubedError(f"{', '.join(lost)} may not be used, and no other stands in for it")
        there = tuple(node for node in chosen.nodes if node.name in names)
        chosen = chosen.model_copy(update={"nodes": there})
        links.hold(chosen.with_ranks, point.rate_bps)
        return _at_rate(chosen, point.rate_bps)

    def _result(
        self, point: Point, chosen: Allocation, told: Callable[[str], None]
    ) -> jobs.JobResult:
        campaign = self.series.campaign
        environment = campaign.environments.get(point.environment, Environment())
        request = Request(
            job=campaign.job,
            settings=point.arguments,
            choice=Choice(nodes=point.nodes, ranks=point.ranks),
            container=environment.container,
            launcher=environment.launcher,
        )
        kin = f"{self.kin}.{point.id}"
        return jobs.run(self.cluster, self.plan, chosen, request, told, set_=kin)


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

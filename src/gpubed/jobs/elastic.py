"""Runs an elastic training: a sequence of runs, each of which resumes from the last checkpoint.

If a run loses a node, gpubed ends it, and starts the next run on the healthy nodes. Unlike
Horovod's elastic mode, this needs only checkpoints, and survives ranks that die while it starts.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from gpubed.configuration import health, unfinished
from gpubed.core import runlock
from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.jobs import checkpoint_files, execution, jobfile, launchers
from gpubed.jobs.checkpoint_files import Files
from gpubed.jobs.execution import Terms
from gpubed.jobs.job_result import JobResult
from gpubed.jobs.runs import checkpoints
from gpubed.jobs.runs.record import Choice, Request
from gpubed.jobs.stall_detector import Pace, Sight, StallDetector
from gpubed.nodes import link_rates
from gpubed.nodes.allocation import Cluster, Node, NotUp
from gpubed.nodes.ssh import Unreachable
from gpubed.testbeds.specification import load_cluster, load_current

_TRIES = 3
_WAIT_S = 3600.0
_ASK_AGAIN_S = 10.0


@dataclass(frozen=True)
class Bounds:
    """Limits of a training's number of nodes; a `most` of None stands for all nodes."""

    least: int = 1
    most: int | None = None


@dataclass(frozen=True)
class Leg:
    """One run of a training; `why` joins its failures."""

    run_id: str
    nodes: tuple[str, ...]
    status: str
    seconds: float
    why: str


@dataclass(frozen=True)
class Keeps:
    """The folder of a job's checkpoints, and the argument with its name.

    Attributes:
        is_named: Whether the user or `job.yml` named it; else it has the first run's name.
    """

    argument: str
    folder: str
    is_named: bool


@dataclass(frozen=True)
class _Pool:
    """The healthy nodes, why others are left out, and whether the training waited for nodes."""

    usable: Cluster
    left_out: dict[str, str]
    waited: bool = False


class Training:
    """A training on one cluster: starts runs until one completes.

    Args:
        say: Called with messages about events between runs.
        on_output: Called with each line that the job prints.
        resumes: The run from whose checkpoint the training starts.

    Attributes:
        run_id: The present or last run; before the first, `resumes`.
        legs: The runs that ended, oldest first.
        seconds: Duration, including the waits for nodes.

    Raises:
        UsageError: The job keeps no checkpoints, or its launcher cannot end a run early.
    """

    def __init__(
        self,
        paths: ClusterPaths,
        request: Request,
        bounds: Bounds,
        say: Callable[[str], None],
        on_output: Callable[[str], None],
        *,
        resumes: str = "",
    ) -> None:
        keeps = require_elastic(paths, request)
        self._folder = keeps.folder
        self._first = "" if keeps.is_named else keeps.folder
        self._paths, self._bounds = paths, bounds
        settings = {**request.settings, keeps.argument: keeps.folder}
        self._request = request.model_copy(update={"settings": settings})
        self._say, self._on_output = say, on_output
        self._uuid = self._last_note = ""
        self._pace = Pace()
        self.run_id = resumes
        self.legs: list[Leg] = []
        self.seconds = 0.0

    def run(self) -> JobResult:
        """Run the training to its end; return the result of its last run.

        Raises:
            UsageError: The request is wrong.
            Locked: A measurement must be alone, or another run writes the same checkpoints.
            NotUp: The cluster is not up, or was replaced by another cluster.
            GpubedError: The training cannot begin, or there were too few nodes for an hour.
        """
        with (
            checkpoints.kept(self._paths, [self._folder], checkpoints.ELASTIC),
            runlock.measuring(self._paths.state, checkpoints.ELASTIC, shared=True),
        ):
            began = time.monotonic()
            result = self._run()
            self.seconds = time.monotonic() - began
            return result

    def _run(self) -> JobResult:
        pool, failures = self._wait_for_nodes(), 0
        if self.run_id:
            hint = begin_anew(self._paths, self._request)
            checkpoint_files.require_some(pool.usable, [self._folder], hint)
        before = self._checkpoints(pool)
        while True:
            nodes = _chosen(pool.usable, self._bounds, self.legs[-1].nodes if self.legs else ())
            result, detector = self._leg(pool, nodes)
            if result.completed:  # a repetition would have the same metrics
                return result
            pool = self._wait_for_nodes()
            now = self._checkpoints(pool)
            progressed = bool(now and before and now.new(before))
            # A job that fails by itself without a new checkpoint would fail forever. A connection
            # lost before the first step does not prove a fault of a node.
            present = set(map(_identity, pool.usable.allocation.nodes))
            lacked = pool.waited or not present.issuperset(map(_identity, nodes))
            cut_off = result.cut_off and detector.has_stepped
            by_nodes = detector.blames_nodes or lacked or cut_off
            failures = 0 if by_nodes or progressed else failures + 1
            if failures == _TRIES:
                why = f"it ended {_TRIES} times in a row without a new checkpoint"
                return replace(result, failures=[why, *result.failures])
            if now and not now.finished:
                where = checkpoint_files.folder(pool.usable.plan, self._folder)
                self._say(f"there is no checkpoint in {where}: it begins anew")
            before = now or before

    def _wait_for_nodes(self) -> _Pool:
        last_why, until = "", time.monotonic() + _WAIT_S
        while True:
            try:
                pool = self._look()
                able, least = len(pool.usable.allocation.with_ranks), self._bounds.least
                if able >= least:
                    return replace(pool, waited=bool(last_why))
                reasons = "".join(f"; {name}: {why}" for name, why in pool.left_out.items())
                why = f"{able} node(s) are well, and at least {least} are wanted{reasons}"
            except NotUp:
                raise
            except GpubedError as error:
                if not self.legs:
                    raise
                why = error.message
            if time.monotonic() > until:
                again = f"gpubed run {self._paths.name} --elastic --resume {self.run_id}"
                raise GpubedError(f"{why}; it waited for an hour", again if self.run_id else None)
            if why != last_why:
                self._say(f"waits: {why}")
                last_why = why
            time.sleep(_ASK_AGAIN_S)

    def _look(self) -> _Pool:
        paths = self._paths
        # Later edits of cluster.yml do not stop the training.
        cluster = self._load_current() if self._uuid else load_cluster(paths)
        cluster.allocation.require_nodes()
        self._uuid = self._uuid or cluster.allocation.uuid
        if cluster.allocation.uuid != self._uuid:
            raise NotUp(
                f"{paths.name} was removed and is another cluster now", f"gpubed runs {paths.name}"
            )
        _require_settled(paths)
        unfinished.require_configured(cluster)
        link_rates.require_declared(paths)
        usable, unwell = health.usable(cluster)
        _require_settled(paths)  # again: a watch may have begun a repair while a node hung
        return _Pool(usable, {found.node: found.reason for found in unwell})

    def _load_current(self) -> Cluster:
        def note(message: str) -> None:
            if message != self._last_note:
                self._say(message)
                self._last_note = message

        return load_current(self._paths, note)

    def _leg(self, pool: _Pool, nodes: Sequence[Node]) -> tuple[JobResult, StallDetector]:
        names = tuple(node.name for node in nodes)
        request = self._request.model_copy(update={"choice": Choice(on=names)})
        detector = StallDetector(
            lambda: self._sight(nodes),
            lambda: self._checkpoints(pool),
            self._say,
            self._pace,
            prints_progress=jobfile.of(request).progress,
        )
        former, began = self.run_id, time.monotonic()
        self.run_id = run_id = self._first or execution.name_run(request.job)
        self._first = ""
        self._say(execution.beginning(request.job, nodes, "resumes" if former else "starts"))

        def hear(line: str) -> None:
            detector.hear(line)
            self._on_output(line)

        try:
            with detector.at_work():
                result = execution.run(
                    pool.usable,
                    request,
                    hear,
                    Terms(
                        run_id=run_id,
                        resumes=former,
                        elastic=True,
                        unwanted=lambda: detector.verdict,
                        was_well=lambda: detector.makes_room,
                    ),
                )
        except UsageError:
            raise
        except GpubedError as error:  # usually, the head is lost
            run_dir = str(self._paths.runs / run_id)
            result = JobResult(request.job, run_dir, len(names), failures=[error.message])
            result.seconds = time.monotonic() - began
            result.cut_off = isinstance(error, Unreachable)
        self._pace = detector.pace
        why = "; ".join(reason.removesuffix(result.to_see) for reason in result.failures)
        self.legs.append(Leg(run_id, names, result.status, round(result.seconds, 2), why))
        if why:
            self._say(f"{run_id} is over: {why}")
        return result, detector

    def _sight(self, nodes: Sequence[Node]) -> Sight:
        """Look for lost nodes of a run, and for a better choice of nodes."""
        paths = self._paths
        try:
            cluster = self._load_current()
            usable, unwell = health.usable(cluster)
        except Unreachable as error:
            return Sight(lost=error.message)
        except GpubedError:
            return Sight()  # the head answers, but is not healthy
        present = set(map(_identity, cluster.allocation.nodes))
        lost = [f"{node.name} was replaced" for node in nodes if _identity(node) not in present]
        names = [node.name for node in nodes]
        own = [found for found in unwell if found.node in names]
        lost += [found.reason for found in own if not found.reachable]
        if lost:
            return Sight(lost="; ".join(lost))
        able = [node.name for node in _chosen(usable, self._bounds, names)]
        changing = runlock.holder(paths.state) or unfinished.state(paths)
        if changing or len(able) < self._bounds.least:
            return Sight()
        changes = [f"{found.node} is left out ({found.reason})" for found in own]
        changes += [f"{name} is taken in" for name in able if name not in names]
        return Sight(better="; ".join(changes))

    def _checkpoints(self, pool: _Pool) -> Files | None:
        return checkpoint_files.look(pool.usable, self._folder)


def first(bounds: Bounds, usable: Cluster) -> Choice:
    """Return the nodes that a training would start on.

    Raises:
        GpubedError: There are too few healthy nodes, so the training would wait.
    """
    able = usable.allocation.with_ranks
    if len(able) < bounds.least:
        raise GpubedError(
            f"{len(able)} node(s) are well, and at least {bounds.least} are wanted: it would wait",
            f"gpubed health {usable.name}",
        )
    return Choice(on=tuple(node.name for node in _chosen(usable, bounds)))


def begin_anew(paths: ClusterPaths, request: Request) -> str:
    """Return a hint with the command that starts a training without a checkpoint."""
    settings = (shlex.quote(f"{name}={value}") for name, value in request.settings.items())
    words = " ".join(f"--set {setting}" for setting in settings)
    return f"gpubed run {paths.name} --elastic {words} {request.what} begins anew"


def require_bounds(bounds: Bounds) -> None:
    """Raise `UsageError` if min is below 1, or max is below min."""
    most = bounds.most
    if bounds.least < 1 or (most is not None and most < bounds.least):
        options = f"--min {bounds.least}" + ("" if most is None else f" --max {most}")
        hint = "--min 1 or more, --max not below it"
        raise UsageError(f"{options}: no number of nodes fits", hint)


def require_elastic(paths: ClusterPaths, request: Request) -> Keeps:
    """Return the checkpoint folder of a job.

    Raises:
        UsageError: The job keeps no checkpoints, or its launcher cannot end a run early.
    """
    job = jobfile.of(request)
    launcher = request.launcher or job.launcher
    if not launchers.named(launcher).ends_early:
        why = f"--elastic ends runs and starts others, which launcher {launcher} cannot do"
        raise UsageError(why, "--launcher ssh")
    argument = next((name for name, one in job.arguments.items() if one.resumes), None)
    if argument is None:
        raise UsageError(
            f"job {request.job} keeps no checkpoints to resume from",
            f"gpubed run {paths.name} {request.job}; see docs/how-to/write-a-job.md on checkpoints",
        )
    given = job.values(request.job, request.settings)[argument]
    return Keeps(argument, given or execution.name_run(request.job), is_named=bool(given))


def _require_settled(paths: ClusterPaths) -> None:
    """Refuse a cluster that is being changed, or whose change was interrupted."""
    runlock.require_free(paths.state)
    unfinished.require_none(paths)


def _chosen(usable: Cluster, bounds: Bounds, present: Collection[str] = ()) -> tuple[Node, ...]:
    """Return the nodes for ranks, preferring those that the training already uses."""
    able = usable.allocation.with_ranks
    chosen = sorted(able, key=lambda node: node.name not in present)[: bounds.most]
    return tuple(node for node in able if node in chosen)


def _identity(node: Node) -> tuple[str, str]:
    return node.name, node.id

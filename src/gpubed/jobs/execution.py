"""Runs a job on a cluster: `jobs/<name>/` → ranks on nodes → results.

A job writes its results to `metrics.json`; its output is never parsed for them. Whether the job did
what was asked (`sanity`) is kept apart from how fast it was (`metrics`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePath
from typing import cast

from gpubed.core import files, reading
from gpubed.core.copying import MayNotBeRead
from gpubed.core.errors import GpubedError, UsageError
from gpubed.hardware import facts
from gpubed.jobs import (
    causes,
    checkpoint_files,
    images,
    job_result,
    jobfile,
    launchers,
    leftovers,
    packages,
    source,
    stack_traces,
)
from gpubed.jobs.job_result import JobResult
from gpubed.jobs.jobfile import Job
from gpubed.jobs.launcher import Launch, Launcher
from gpubed.jobs.rank_output import RankOutput, Updates
from gpubed.jobs.runs import checkpoints, concurrent, origin, record
from gpubed.jobs.runs.output import Output
from gpubed.jobs.runs.record import Cause, Record, Request
from gpubed.nodes import openssh, selection
from gpubed.nodes.allocation import Allocation, Cluster, Node
from gpubed.nodes.output import SSH_FAILED
from gpubed.nodes.ssh import SSH
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds import history, registry
from gpubed.testbeds.base import Ended, JobBackend, JobService, Task, World

_RESULTS = {"metrics.json", "metrics.jsonl", "metrics.csv", causes.ENDS}
_IN_CONTAINER = "gpubed-container"  # role docker puts it on the nodes
_HINTS = {
    "out_of_memory": "smaller batches, or fewer workers of the data loader",
    "cuda_out_of_memory": "smaller batches, or gradient accumulation",
    "disk_full": "gpubed ssh {} {} -- df -h   shows file systems; files of ended runs may go",
}
_OUTLIVE = "docs/how-to/outlive-nodes.md tells how a training goes on without it"


@dataclass(frozen=True)
class Terms:
    """How a run is recorded and ended, apart from what is asked of the job itself.

    Attributes:
        run_id: Name of the run; by default that of `name_run`.
        set_: The name that repetitions have in common; empty for a single run.
        repetition: Number of the repetition, from 0.
        again: The run that it repeats.
        resumes: The run from whose checkpoint it goes on.
        elastic: Whether it is a part of an elastic training.
        by: The verb that measures with it; empty for a run that a user asked for.
        alone: Whether to refuse to start beside another run, which would distort a measurement.
        unwanted: Called every few seconds; returns why the run has to end, else an empty string.
        was_well: Called if it was unwanted; says whether it was only interrupted and did not fail.
        links: Rates of links that were just measured, in bit/s by `a>b`; by default those of the
            last verification are recorded.
    """

    run_id: str = ""
    set_: str = ""
    repetition: int | None = None
    again: str = ""
    resumes: str = ""
    elastic: bool = False
    by: str = ""
    alone: bool = False
    unwanted: Callable[[], str] = lambda: ""
    was_well: Callable[[], bool] = lambda: False
    links: Mapping[str, float] = field(default_factory=dict)

    def noted(self, planned: Record) -> Record:
        """Return a run's record with these terms."""
        kept = ("repetition", "again", "resumes", "elastic", "by")
        noted = {"set": self.set_, **{name: getattr(self, name) for name in kept}}
        if self.links:
            measured = {"rates_bps": dict(self.links)}
            noted["origin"] = planned.origin.model_copy(update=measured)
        return planned.model_copy(update=noted)


_USUAL = Terms()


def run(
    cluster: Cluster,
    request: Request,
    on_output: Callable[[str], None] = lambda _line: None,
    terms: Terms = _USUAL,
) -> JobResult:
    """Run a job on the requested nodes, copy its folder back, and keep a record.

    Args:
        cluster: The cluster, with the nodes that the run may use.
        on_output: Called with each line that the job prints. One that ends with a carriage return
            is replaced by the next one of its rank.

    Raises:
        UsageError: There is no such job, launcher or node, an argument is wrong, the cluster has no
            Docker, or no node has ranks.
        Locked: Another run writes the same checkpoints.
        GpubedError: A node could not be reached or lacks the image, or the run would not be alone.
    """
    run = _foresee(cluster, request, terms.run_id)
    if run.service:  # so that what it starts there can be found again
        testbed = registry.bound(cluster.plan.backend, cluster.paths)
        history.note(testbed, applied=True)
    begun = terms.noted(run.record)
    started = time.monotonic()
    # An elastic training locks its checkpoints itself, across all of its runs.
    mine = () if terms.elastic else checkpoints.folders(run.job, begun.values)
    with checkpoints.kept(cluster.paths, mine, "run"), run.kept(begun, on_output) as keep:
        result = run.by_service(keep, terms) if run.service else run.over_ssh(keep, terms)
        if result.failures and not result.cause:
            result.cause = Cause(kind="sanity", message=result.failures[0], at=record.now())
        result.seconds = time.monotonic() - started
        result.described = run.job.metrics
        others = [*result.shared_with, *concurrent.found(cluster.paths, begun)]
        result.shared_with = list(dict.fromkeys(others))
        record.write(run.here, run.ended(begun, result))
    record.seal(run.here)
    return result


def foresee(cluster: Cluster, request: Request) -> Record:
    """Return the record that a run would begin with now, without starting it.

    Raises:
        UsageError: The run could not begin; see `run`.
    """
    return _foresee(cluster, request).record


def _foresee(cluster: Cluster, request: Request, run_id: str = "") -> _Run:
    plan = cluster.plan
    job = jobfile.of(request)
    folder, names = _files(request)
    _require_other_names(folder, names)
    if request.command:
        source.require_script(request.command, folder, names)
    chosen = _launcher(plan, job, request.launcher)
    if isinstance(chosen, Launcher):
        chosen.require(plan)
        if request.container or job.container:
            images.require_docker(plan)
    else:
        history.require_same(registry.bound(plan.backend, cluster.paths))
    values = job.values(request.job, request.settings)
    used = selection.choose(cluster.allocation, **request.choice.model_dump())
    cluster = replace(cluster, allocation=used)
    world = chosen.worlds(plan)[0] if isinstance(chosen, JobService) else used.nodes
    ranks = sum(node.slots for node in world)
    if not ranks:
        raise UsageError(
            f"cluster {cluster.name} has no node that ranks could start on",
            f"gpubed health {cluster.name}; nodes without GPUs have none beside others",
        )
    run_id = run_id or name_run(request.job)
    planned = Record(
        run_id=run_id,
        request=request,
        origin=origin.look(cluster, folder, names if request.command else None),
        command=request.command or tuple(job.words(request.job, request.settings)),
        values=values,
        world_size=ranks,
        started=record.now(),
    )
    return _Run(cluster, job, chosen, planned, cluster.paths.runs / run_id)


def _files(request: Request) -> tuple[Path, list[str]]:
    """Return the folder that a run is made from, and what of it is copied to the nodes.

    Figures that an earlier run left in it stay, since they would count as this run's.

    Raises:
        UsageError: The folder is gone, or has too many files.
    """
    if not request.command:
        folder = jobfile.folder(request.job)
        every = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
        return folder, [str(one) for one in every if one.parts[0] not in _RESULTS]
    folder = Path(request.folder)
    if not folder.is_dir():
        raise UsageError(f"the folder of the command, {folder}, is gone", "call it in another one")
    names = source.files(folder)
    return folder, [
        name
        for name in names
        if name.split("/")[0] not in _RESULTS and "events.out.tfevents." not in name
    ]


def _require_other_names(folder: Path, names: Sequence[str]) -> None:
    """Refuse files with names that gpubed itself uses in a run's folder.

    Raises:
        UsageError: There are some.
    """
    if taken := sorted(record.OWN & {PurePath(name).parts[0] for name in names}):
        raise UsageError(
            f"{', '.join(taken)} in {folder}: in a run's folder, that is gpubed's own",
            " && ".join(f"mv {folder / name} {folder / f'job-{name}'}" for name in taken),
        )


def beginning(job: str, nodes: Sequence[Node], word: str = "starts") -> str:
    """Return a message that a job starts, and where; without nodes, the testbed chooses them."""
    ranks, names = sum(node.slots for node in nodes), ", ".join(node.name for node in nodes)
    return f"{job} {word}" + (f": {ranks} rank(s) on {names}" if names else "")


def name_run(job: str) -> str:
    """Return a name from job and UTC time; the status page recognizes runs by its form."""
    # In milliseconds: several runs may start in one second.
    return datetime.now(UTC).strftime("%Y%m%d-%H%M%S%f")[:-3] + f"-{job}"


def _launcher(plan: ClusterPlan, job: Job, wanted: str | None) -> Launcher | JobService:
    backend = registry.backend(plan.backend)
    own = backend.name if isinstance(backend, JobBackend) else None
    name = wanted or own or job.launcher
    if isinstance(backend, JobBackend) and name == own:
        return backend.service()
    chosen = launchers.named(name)
    if own:
        raise UsageError(
            f"launcher {name} starts jobs on nodes, and {plan.backend} has none",
            f"--launcher {own}",
        )
    if isinstance(chosen, JobService):
        raise UsageError(f"launcher {name} needs a testbed that runs jobs", "--launcher ssh")
    return chosen


@dataclass(frozen=True)
class _Run:
    """One run of a job, on the nodes of `cluster`; `here` is its folder on the controller."""

    cluster: Cluster
    job: Job
    launcher: Launcher | JobService
    record: Record
    here: Path

    @property
    def service(self) -> bool:
        """Whether the testbed itself runs it."""
        return isinstance(self.launcher, JobService)

    @property
    def request(self) -> Request:
        """The run's request."""
        return self.record.request

    @property
    def _log(self) -> Path:
        return self.here / record.OUTPUT

    @contextmanager
    def kept(
        self, begun: Record, on_output: Callable[[str], None]
    ) -> Iterator[Callable[[str], None]]:
        """Create the run's folder with its record, origin and log; yield the log's writer."""
        record.written(begun)  # a record that cannot be written leaves no folder
        files.make(self.here.parent)
        self.here.mkdir()
        files.sync(self.here.parent)
        with (
            record.kept(self.here, begun),
            files.named(self._log),
            self._log.open("w+b") as log,
        ):
            origin.copy(self.cluster, self.here)
            output, updates = Output(log), Updates()

            def keep(line: str) -> None:
                settled = updates.settle(line)
                if settled is not None:
                    output.add(settled)
                on_output(line if settled is None else settled)

            try:
                yield keep
            finally:
                for line in updates.rest():
                    output.add(line)

    def over_ssh(self, keep: Callable[[str], None], terms: Terms) -> JobResult:
        """Run the job from the head, on all nodes that have ranks."""
        launcher = cast("Launcher", self.launcher)
        words, ranks, id_ = list(self.record.command), self.record.world_size, ""
        if image := self.request.container or self.job.container:
            id_ = images.require(self.cluster, image)
            words = [_IN_CONTAINER, image, *words]
        with SSH(self.cluster.allocation.head, self.cluster.paths) as head:
            others = list[str]()
            for line in leftovers.end(self.cluster, self._is_over):
                keep(line)
                if not isinstance(line, leftovers.AtWork):
                    continue
                if terms.alone:
                    raise GpubedError(line, "wait for its end")
                others.append(line.run)
            launch = self._prepare(head, words)
            if not image:  # which brings its own
                place = packages.on_head(self.cluster, head)
                environment = self._add_packages(terms, place, launch.folder)
                launch.environment["GPUBED_PYTHON"] = environment
            launch = replace(launch, unwanted=terms.unwanted)
            if (links := self.cluster.allocation.experiment) and links.rate_bps:
                launch.environment["GPUBED_RATE_BPS"] = str(links.rate_bps)
            _describe(head, launch.folder, self.cluster.allocation)
            said = RankOutput(ranks)

            stalls = stack_traces.Stalls(self.cluster, launch.folder, said)

            def hear(line: str) -> None:
                said.read(line)
                keep(line)
                for place in stalls.news():
                    keep(place)

            code = launcher.run(self.cluster, launch, hear)
            asked = terms.unwanted()  # once: the answer may change later
        # A connection of its own: the first one may have ended with the job, or long before.
        with SSH(self.cluster.allocation.head, self.cluster.paths) as head:
            missing = self._collect(head, launch.folder, code, keep)
        result = JobResult(
            self.request.job, str(self.here), ranks, simulated=self._simulated(), image=id_
        )
        result.shared_with = others
        if code:
            self._tell_why(result, said, code, asked)
        result.failures += missing
        job_result.judge(result, self.job, self.record.values)
        # A job may also exit with 0 when it is told to end; with metrics, it was done before.
        result.completed = not code and bool(result.metrics or not asked)
        result.interrupted = bool(not result.completed and asked and terms.was_well())
        return result

    def _tell_why(self, result: JobResult, said: RankOutput, code: int, asked: str) -> None:
        """Give the result its cause, and the last words of the rank that failed first."""
        result.cause = said.cause(self._places, causes.ends(self.here, len(self._places)))
        if code == SSH_FAILED and said.is_cut_off:
            head = self.cluster.allocation.head.name
            what = f"the connection to {head} ended, and the run with it"
            result.cause = Cause(kind="node_lost", node=head, message=what, at=record.now())
        if asked or not result.cause:
            what = asked or f"the job ended with exit code {code}"
            kind = "cancelled" if asked else "exit"
            result.cause = Cause(kind=kind, message=what, at=record.now())
        result.failures.append(asked or f"{result.cause.message}{result.to_see}")
        result.last_words = said.last_words
        result.cut_off = said.lost_its_node or code == SSH_FAILED
        hint = _HINTS.get(result.cause.kind, "")
        result.hint = hint.format(self.cluster.name, result.cause.node)
        if said.lost_its_node:
            result.hint = f"gpubed up {self.cluster.name} brings it back; {_OUTLIVE}"

    def _prepare(self, head: SSH, words: list[str]) -> Launch:
        """Copy the run's files to the head; return how to start it."""
        storage = self.cluster.plan.spec.storage
        folder = f"{storage.shared.path}/runs/{self.record.run_id}"
        here, names = _files(self.request)
        if self.request.command:
            login = [
                "ssh",
                "-F",
                str(self.cluster.paths.ssh_config),
                self.cluster.allocation.head.name,
            ]
            openssh.send(login, here, names, folder)
        else:
            head.put(here, folder)
        environment = {
            "GPUBED_RUN_DIR": folder,
            "GPUBED_SHARED": storage.shared.path,
            "GPUBED_DATASETS": storage.datasets,
            "GPUBED_SCRATCH": storage.scratch.path if storage.scratch else "",
        }
        environment |= self._environment
        if kept := environment.get("GPUBED_CHECKPOINTS"):
            head.run("mkdir -p %s", kept)
        return Launch(folder, words, environment, len(self._places))

    @property
    def _environment(self) -> dict[str, str]:
        """Variables of each rank that follow from the request."""
        made = {"GPUBED_PER_NODE": "1" if self.request.per_node else ""}
        if after := math.ceil(self.request.stall_after_s or 0):
            made["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] = str(after)
            made["HOROVOD_STALL_CHECK_TIME_SECONDS"] = str(min(after, 60))
        if self.request.command and (name := self.record.values[jobfile.CHECKPOINT]):
            made["GPUBED_CHECKPOINTS"] = checkpoint_files.folder(self.cluster.plan, str(name))
        return made

    def _add_packages(self, terms: Terms, place: packages.Place, folder: str) -> str:
        """Return the environment with the packages of the folder, the job and `cluster.yml`.

        Empty if none are wanted.
        """
        wanted = (*self.cluster.plan.spec.python.packages, *self.job.python.packages)
        if not packages.wants(_files(self.request)[1], wanted):
            return ""
        lock = ""
        if former := terms.again or terms.resumes:
            with suppress(reading.Missing):
                kept = self.cluster.paths.runs / former / record.ORIGIN / packages.LOCK
                lock = reading.file(kept).text()
        path, lock = packages.provide(self.cluster, place, folder, wanted, lock)
        files.write(self._lock, lock.encode())
        return path

    def ended(self, begun: Record, result: JobResult) -> Record:
        """Return the run's record with its result."""
        made = {"image": result.image, "packages_sha256": record.sha256_of(self._lock)}
        return begun.model_copy(
            update={
                "state": result.status,
                "seconds": round(result.seconds, 3),
                "failures": tuple(result.failures),
                "cause": result.cause,
                "last_words": tuple(result.last_words),
                "simulated": result.simulated,
                "shared_with": tuple(result.shared_with),
                "devices": tuple(result.devices),
                "metrics": result.metrics,
                "origin": begun.origin.model_copy(update=made),
            }
        )

    @property
    def _lock(self) -> Path:
        return self.here / record.ORIGIN / packages.LOCK

    def _is_over(self, run: str) -> bool:
        """Say whether another run used the checkpoints of this one.

        This run holds their lock now, so the other one has lost its owner.
        """
        mine = checkpoints.folders(self.job, self.record.values)
        with suppress(GpubedError):
            its = checkpoints.of(record.read(self.cluster.paths.runs / run))
            return not set(its).isdisjoint(mine)
        return False  # not a run of this controller

    def _collect(self, head: SSH, folder: str, code: int, keep: Callable[[str], None]) -> list[str]:
        """Copy the results back; return why that failed, for a job that succeeded.

        Raises:
            GpubedError: The results of a failed job could not be copied.
        """
        try:
            for line in head.get(folder, self.here, record.OWN):
                keep(line)
        except GpubedError as error:
            if code and not isinstance(error, MayNotBeRead):
                raise
            where = f"{folder} on {self.cluster.allocation.head.name}"
            return [f"its results are in {where} only: {error.message}"]
        return []

    @property
    def _places(self) -> list[str]:
        """The node of each process: launchers fill the nodes of the hostfile in their order."""
        nodes = self.cluster.allocation.with_ranks
        if self.request.per_node:
            return [node.name for node in nodes]
        return [node.name for node in nodes for _ in range(node.slots)]

    def _simulated(self) -> tuple[str, ...]:
        known = facts.of_cluster(self.cluster.paths.facts, self.cluster.allocation).values()
        return tuple(sorted({found.simulated for found in known if found.simulated}))

    def by_service(self, keep: Callable[[str], None], terms: Terms) -> JobResult:
        """Let the testbed run the job, as one world or as several."""
        service = cast("JobService", self.launcher)
        name, settings = self.request.job, self.request.settings
        planned = service.worlds(self.cluster.plan)
        several = len(planned) > 1
        worlds = [
            World(
                label=f"trial {number}" if several else "",
                here=self.here / f"trial-{number}" if several else self.here,
                command=self.request.command
                or self.job.words(name, _seeded(self.job, settings, number)),
                ranks=sum(node.slots for node in nodes),
                nodes=len(nodes),
            )
            for number, nodes in enumerate(planned)
        ]
        folder, names = _files(self.request)
        task = Task(
            name,
            folder,
            names,
            self.record.run_id,
            self.here,
            worlds,
            record.OWN,
            self._environment,
            per_node=self.request.per_node,
            follow=not self.request.command,
            image=self.request.container or self.job.container,
            add_packages=partial(self._add_packages, terms),
        )
        said = [RankOutput(world.ranks) for world in worlds]

        def hear(line: str) -> None:
            for world, output in zip(worlds, said, strict=True):
                start = f"{world.label}: " if world.label else ""
                if line.startswith(start):
                    output.read(line.removeprefix(start))
            keep(line)

        for world in worlds:
            world.here.mkdir(exist_ok=True)
        ends = service.run(self.cluster, task, hear)
        trials = [*map(self._world_result, worlds, ends, said)]
        return self._several(trials) if several else trials[0]

    def _world_result(self, world: World, ended: Ended, said: RankOutput) -> JobResult:
        result, reason = JobResult(self.request.job, str(world.here), world.ranks), ended.reason
        if reason:
            several = 1 if self.request.per_node else world.ranks // world.nodes
            places = [name for name, _ in world.places() for _ in range(several)]
            places = places or [world.label or self.cluster.plan.backend] * world.ranks
            if ended.kind == "node_lost":
                result.cause = Cause(kind="node_lost", message=reason, at=record.now())
                result.cut_off = True
            elif cause := said.cause(places, causes.ends(world.here, len(places))):
                result.cause, result.last_words = cause, said.last_words
                reason = f"{cause.message}; {reason}"
            result.failures.append(reason)
        job_result.judge(result, self.job, self.record.values)
        return result

    def _several(self, trials: list[JobResult]) -> JobResult:
        whole = job_result.together(trials)
        whole.run_dir = str(self.here)
        failed = {
            f"trial {number}": "; ".join(trial.failures)
            for number, trial in enumerate(trials)
            if trial.failures
        }
        wanted = sum(group.least for group in self.cluster.plan.spec.nodes)
        if len(trials) - len(failed) < wanted:
            whole.failures = [f"{name}: {reason}" for name, reason in failed.items()]
        else:
            whole.left_out = failed
        return whole


def _seeded(job: Job, settings: Mapping[str, str], trial: int) -> dict[str, str]:
    """Return the settings with the trial's number added to the seed, if the job has one."""
    given = dict(settings)
    if "seed" in job.arguments:
        first = given.get("seed", job.arguments["seed"].default)
        with suppress(TypeError, ValueError):
            given["seed"] = str(int(first) + trial)  # type: ignore[arg-type]  # null has no seeds
    return given


def _describe(head: SSH, folder: str, allocation: Allocation) -> None:
    """Write the nodes that a job runs on to `cluster.json` and `hostfile` in its folder."""
    head.write(f"{folder}/cluster.json", allocation.model_dump_json())
    slots = "".join(f"{node.name} slots={node.slots}\n" for node in allocation.with_ranks)
    head.write(f"{folder}/hostfile", slots)

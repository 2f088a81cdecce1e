"""Runs a job on a cluster: copies its files, starts its ranks, collects its results.

A job writes its results to `metrics.json`; its output is not parsed for them. Conditions that the
results must meet (`sanity`) are apart from the figures (`metrics`).
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

from gpubed.access import tracking
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
from gpubed.jobs.runs import active, checkpoints, origin, record
from gpubed.jobs.runs.output import Output
from gpubed.jobs.runs.record import Cause, Record, Request
from gpubed.nodes import openssh, selection
from gpubed.nodes.allocation import Cluster, Node
from gpubed.nodes.output import SSH_FAILED
from gpubed.nodes.ssh import SSH
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds import history, registry
from gpubed.testbeds.base import Ended, JobBackend, JobService, Task, World

_RESULTS = {"metrics.json", "metrics.jsonl", "metrics.csv", causes.ENDS}
_IN_CONTAINER = "gpubed-container"  # installed by role docker
_HINTS = {
    "out_of_memory": "smaller batches, or fewer workers of the data loader",
    "cuda_out_of_memory": "smaller batches, or gradient accumulation",
    "disk_full": "gpubed ssh {} {} -- df -h   shows file systems; remove files of ended runs",
}
_OUTLIVE = "docs/how-to/outlive-nodes.md shows trainings that continue without it"


@dataclass(frozen=True)
class Terms:
    """How a run is recorded and ended; `Request` has the job and its arguments.

    Attributes:
        run_id: Name of the run; by default from `name_run`.
        set_: The common name of repetitions; empty for a single run.
        repetition: Number of the repetition, from 0.
        again: The run that it repeats.
        resumes: The run from whose checkpoint it resumes.
        elastic: Whether it is part of an elastic training.
        by: The verb that measures with it; empty for a run that a user started.
        alone: Whether to refuse to start beside another run, which would distort a measurement.
        unwanted: Called every few seconds; returns why the run has to end, else an empty string.
        was_well: Called if `unwanted` ended the run; returns whether it was healthy, so that it
            counts as interrupted instead of failed.
        links: Rates of links that were just measured, in bit/s by `a>b`; by default, the rates of
            the last verification are recorded.
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

    def added_to(self, planned: Record) -> Record:
        """Return a run's record with these terms."""
        names = ("repetition", "again", "resumes", "elastic", "by")
        terms = {"set": self.set_, **{name: getattr(self, name) for name in names}}
        if self.links:
            measured = {"rates_bps": dict(self.links)}
            terms["origin"] = planned.origin.model_copy(update=measured)
        return planned.model_copy(update=terms)


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
        on_output: Called with each line that the job prints. A line that ends with a carriage
            return is replaced by the next line of its rank.

    Raises:
        UsageError: There is no such job, launcher or node, an argument is wrong, the cluster has no
            Docker, or no node has ranks.
        Locked: Another run writes the same checkpoints.
        GpubedError: A node could not be reached or lacks the image, or the run would not be alone.
    """
    run = _foresee(cluster, request, terms.run_id)
    if run.service:  # so that jobs of the testbed can be found later
        testbed = registry.bound(cluster.plan.backend, cluster.paths)
        history.note(testbed, applied=True)
    begun = terms.added_to(run.record)
    started = time.monotonic()
    # An elastic training locks its checkpoints itself, across all of its runs.
    folders = () if terms.elastic else checkpoints.folders(run.job, begun.values)
    with checkpoints.kept(cluster.paths, folders, "run"), run.kept(begun, on_output) as keep:
        result = run.by_service(keep, terms) if run.service else run.over_ssh(keep, terms)
        if result.failures and not result.cause:
            result.cause = Cause(kind="sanity", message=result.failures[0], at=record.now())
        result.seconds = time.monotonic() - started
        result.described = run.job.metrics
        others = [*result.shared_with, *active.concurrent(cluster.paths, begun)]
        result.shared_with = list(dict.fromkeys(others))
        record.write(run.here, run.ended(begun, result))
    record.seal(run.here)
    return result


def foresee(cluster: Cluster, request: Request) -> Record:
    """Return the record that a run would start with now, without starting it.

    Raises:
        UsageError: The run could not begin; see `run`.
    """
    return _foresee(cluster, request).record


def _foresee(cluster: Cluster, request: Request, run_id: str = "") -> _Run:
    plan = cluster.plan
    job = jobfile.of(request)
    folder, names = _files(request)
    if taken := sorted(record.OWN & {PurePath(name).parts[0] for name in names}):
        raise UsageError(
            f"{', '.join(taken)} in {folder}: gpubed uses this name in the folders of runs",
            " && ".join(f"mv {folder / name} {folder / f'job-{name}'}" for name in taken),
        )
    if request.command:
        source.require_script(request.command, folder, names)
    launcher = _launcher(plan, job, request.launcher)
    if isinstance(launcher, Launcher):
        launcher.require(plan)
        if request.container or job.container:
            images.require_docker(plan)
    else:
        history.require_same(registry.bound(plan.backend, cluster.paths))
    values = job.values(request.job, request.settings)
    used = selection.choose(cluster.allocation, **request.choice.model_dump())
    cluster = replace(cluster, allocation=used)
    world = launcher.worlds(plan)[0] if isinstance(launcher, JobService) else used.nodes
    ranks = sum(node.slots for node in world)
    if not ranks:
        raise UsageError(
            f"cluster {cluster.name} has no node that ranks could start on",
            f"gpubed health {cluster.name}; beside nodes with GPUs, nodes without start no ranks; "
            "parts of GPUs (mig, shards) are for jobs in Slurm: srun --gres=slice:1 or shard:1",
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
    return _Run(cluster, job, launcher, planned, cluster.paths.runs / run_id)


def _files(request: Request) -> tuple[Path, list[str]]:
    """Return the folder of a job or command, and the names of its files to copy to the nodes.

    Results of earlier runs are left out, as they would be taken for results of this run.

    Raises:
        UsageError: The folder is missing, or has too many files.
    """
    if not request.command:
        folder = jobfile.folder(request.job)
        every = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
        return folder, [str(path) for path in every if path.parts[0] not in _RESULTS]
    folder = Path(request.folder)
    if not folder.is_dir():
        why = f"the folder of the command, {folder}, is missing"
        raise UsageError(why, "call it in another folder")
    return folder, [
        name
        for name in source.files(folder)
        if name.split("/")[0] not in _RESULTS and "events.out.tfevents." not in name
    ]


def beginning(job: str, nodes: Sequence[Node], word: str = "starts") -> str:
    """Return the message of a start, with its nodes; none if the testbed chooses them."""
    ranks, names = sum(node.slots for node in nodes), ", ".join(node.name for node in nodes)
    return f"{job} {word}" + (f": {ranks} rank(s) on {names}" if names else "")


def name_run(job: str) -> str:
    """Return a name from job and UTC time; the status page recognizes runs by its form."""
    # With milliseconds, as several runs may start in one second.
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
    """A run of a job on the nodes of `cluster`; `here` is its folder on the controller."""

    cluster: Cluster
    job: Job
    launcher: Launcher | JobService
    record: Record
    here: Path

    @property
    def service(self) -> bool:
        """Whether the testbed itself runs the job."""
        return isinstance(self.launcher, JobService)

    @property
    def request(self) -> Request:
        """The run's request."""
        return self.record.request

    @contextmanager
    def kept(
        self, begun: Record, on_output: Callable[[str], None]
    ) -> Iterator[Callable[[str], None]]:
        """Create the run's folder with its record, origin and log; yield the log's writer."""
        record.written(begun)  # raises before a folder is created
        files.make(self.here.parent)
        self.here.mkdir()
        files.sync(self.here.parent)
        path = self.here / record.OUTPUT
        with record.kept(self.here, begun), files.named(path), path.open("w+b") as log:
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
        words, ranks, image_id = list(self.record.command), self.record.world_size, ""
        if image := self.request.container or self.job.container:
            image_id = images.require(self.cluster, image)
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
            environment = ""
            if not image:  # images have their own packages
                place = packages.on_head(self.cluster, head)
                environment = self._add_packages(terms, place, launch.folder)
                launch.environment["GPUBED_PYTHON"] = environment
            launch = replace(launch, unwanted=terms.unwanted)
            tracked = self._track(head, terms, environment)
            launch.environment.update({"MLFLOW_RUN_ID": tracked} if tracked else {})
            if (links := self.cluster.allocation.experiment) and links.rate_bps:
                launch.environment["GPUBED_RATE_BPS"] = str(links.rate_bps)
            allocation = self.cluster.allocation
            head.write(f"{launch.folder}/cluster.json", allocation.model_dump_json())
            slots = "".join(f"{n.name} slots={n.slots}\n" for n in allocation.with_ranks)
            head.write(f"{launch.folder}/hostfile", slots)
            output = RankOutput(ranks)
            stalls = stack_traces.Stalls(self.cluster, launch.folder, output)

            def hear(line: str) -> None:
                output.read(line)
                keep(line)
                for place in stalls.news():
                    keep(place)

            with tracking.interrupted(self.cluster, tracked):
                code = launcher.run(self.cluster, launch, hear)
            unwanted = terms.unwanted()  # once: the answer may change later
        # A new connection: the first one may have ended with the job, or long before.
        with SSH(self.cluster.allocation.head, self.cluster.paths) as head:
            missing = self._collect(head, launch.folder, code, keep)
        result = JobResult(self.request.job, str(self.here), ranks, image=image_id)
        result.simulated, result.shared_with = self._simulated(), others
        if code:
            self._explain(result, output, code, unwanted)
        result.failures += missing
        job_result.judge(result, self.job, self.record.values)
        # A job may exit with 0 because it was ended; with metrics, it was done before.
        result.completed = not code and bool(result.metrics or not unwanted)
        result.interrupted = bool(not result.completed and unwanted and terms.was_well())
        why = "; ".join(result.failures)
        tracking.end(self.cluster, tracked, result.status, result.rows(), why=why)
        return result

    def _track(self, head: SSH, terms: Terms, environment: str) -> str:
        """Begin the run in MLflow, unless a verb measures with it; return its id there, or ""."""
        if terms.by or not self.cluster.plan.spec.services.tracking:
            return ""
        base = f"{self.cluster.plan.spec.storage.shared.path}/env/current"
        tags = {
            "mlflow.runName": self.record.run_id,
            "mlflow.source.name": self.request.what,
            "gpubed.run": self.record.run_id,
            "gpubed.set": terms.set_,
            "gpubed.ranks": str(self.record.world_size),
            "gpubed.environment": environment or head.run("readlink -f %s", base).stdout.strip(),
        }
        return tracking.begin(self.cluster, self.request.job, tags, self.record.values)

    def _explain(self, result: JobResult, output: RankOutput, code: int, unwanted: str) -> None:
        """Set the cause and the hint of a failure, and the last lines of the first failed rank."""
        result.cause = output.cause(self._places, causes.ends(self.here, len(self._places)))
        if code == SSH_FAILED and output.is_cut_off:
            head = self.cluster.allocation.head.name
            what = f"the connection to {head} ended, and the run with it"
            result.cause = Cause(kind="node_lost", node=head, message=what, at=record.now())
        if unwanted or not result.cause:
            what = unwanted or f"the job ended with exit code {code}"
            kind = "cancelled" if unwanted else "exit"
            result.cause = Cause(kind=kind, message=what, at=record.now())
        result.failures.append(unwanted or f"{result.cause.message}{result.to_see}")
        result.last_words = output.last_words
        result.cut_off = output.lost_its_node or code == SSH_FAILED
        hint = _HINTS.get(result.cause.kind, "")
        result.hint = hint.format(self.cluster.name, result.cause.node)
        if output.lost_its_node:
            result.hint = f"gpubed up {self.cluster.name} brings it back; {_OUTLIVE}"

    def _prepare(self, head: SSH, words: list[str]) -> Launch:
        """Copy the run's files to the head; return how to start it."""
        storage = self.cluster.plan.spec.storage
        folder = f"{storage.shared.path}/runs/{self.record.run_id}"
        here, names = _files(self.request)
        if self.request.command:
            config, name = self.cluster.paths.ssh_config, self.cluster.allocation.head.name
            openssh.send(["ssh", "-F", str(config), name], here, names, folder)
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
        """Return the path of an environment with the run's own packages; empty without any."""
        wanted = (*self.cluster.plan.spec.python_packages, *self.job.python.packages)
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
        """Return whether another run has the same checkpoints, whose lock this run holds.

        Then the other run has lost its controller.
        """
        own = checkpoints.folders(self.job, self.record.values)
        with suppress(GpubedError):
            others = checkpoints.of(record.read(self.cluster.paths.runs / run))
            return not set(others).isdisjoint(own)
        return False  # not a run of this controller

    def _collect(self, head: SSH, folder: str, code: int, keep: Callable[[str], None]) -> list[str]:
        """Copy the results to the controller; return the error for a job that succeeded.

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
        """The node of each process, in order: launchers fill one node after another."""
        nodes = self.cluster.allocation.with_ranks
        if self.request.per_node:
            return [node.name for node in nodes]
        return [node.name for node in nodes for _ in range(node.slots)]

    def _simulated(self) -> tuple[str, ...]:
        found = facts.of_cluster(self.cluster.paths.facts, self.cluster.allocation).values()
        return tuple(sorted({node.simulated for node in found if node.simulated}))

    def by_service(self, keep: Callable[[str], None], terms: Terms) -> JobResult:
        """Let the testbed run the job, once or as several trials at the same time."""
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
        outputs = [RankOutput(world.ranks) for world in worlds]

        def hear(line: str) -> None:
            for world, output in zip(worlds, outputs, strict=True):
                start = f"{world.label}: " if world.label else ""
                if line.startswith(start):
                    output.read(line.removeprefix(start))
            keep(line)

        for world in worlds:
            world.here.mkdir(exist_ok=True)
        ends = service.run(self.cluster, task, hear)
        trials = [*map(self._world_result, worlds, ends, outputs)]
        return self._several(trials) if several else trials[0]

    def _world_result(self, world: World, ended: Ended, output: RankOutput) -> JobResult:
        result, reason = JobResult(self.request.job, str(world.here), world.ranks), ended.reason
        if reason:
            several = 1 if self.request.per_node else world.ranks // world.nodes
            places = [name for name, _ in world.places() for _ in range(several)]
            places = places or [world.label or self.cluster.plan.backend] * world.ranks
            if ended.kind == "node_lost":
                result.cause = Cause(kind="node_lost", message=reason, at=record.now())
                result.cut_off = True
            elif cause := output.cause(places, causes.ends(world.here, len(places))):
                result.cause, result.last_words = cause, output.last_words
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
            given["seed"] = str(int(first) + trial)  # type: ignore[arg-type]  # may be null
    return given

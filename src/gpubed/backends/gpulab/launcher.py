"""Runs jobs on GPULab: submits, follows and cancels them, and collects results.

A job succeeds if GPULab reports `FINISHED` and its parcel of results is whole with exit code 0.
Names are on disk before each submission and ids after it, so that a crash loses no job.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from gpubed.backends.gpulab import offers, record, request
from gpubed.backends.gpulab.client import Client, NoSuchJob, Unanswered
from gpubed.backends.gpulab.definition import NewJob
from gpubed.backends.gpulab.parcel import Damaged, Parcel
from gpubed.backends.gpulab.remote import WAITING, RemoteJob
from gpubed.core.errors import GpubedError, Refused
from gpubed.nodes.cluster import Cluster
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.base import JobService, Task, World

_POLL_S = 2.0
_SILENCE_S = 600.0  # the service may be down this long; its jobs go on
_SETTLE_S = 20.0  # a log may grow this long after its job's end
_CANCEL_S = 60.0
_LATE_S = 60.0  # time to look for a job whose submission got no answer
_LAST_LINES = 10
_LONGEST_LINE = 2**20


class _Silent(GpubedError):
    """The service did not answer for `_SILENCE_S`."""


@dataclass
class _Job:
    world: World
    definition: NewJob
    parcel: Parcel
    folder: str
    id: str = ""
    asked: bool = False
    status: str = ""
    since: float = 0.0
    offset: int = 0
    rest: bytes = b""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    ended: bool = False
    over: bool = False  # ended or gone at GPULab; `ended` only means no longer followed
    failure: str = ""

    def say(self, text: str) -> str:
        return f"{self.world.label}: {text}" if self.world.label else text


class GpulabLauncher(JobService):
    """One GPULab job per world."""

    times = (_POLL_S, _SILENCE_S, _SETTLE_S, _LATE_S)

    def run(self, cluster: Cluster, task: Task, on_output: Callable[[str], None]) -> list[str]:
        """Run all worlds to their ends; see `JobService.run`."""
        client = Client(request.config(cluster.plan.spec))
        _refuse_impossible(client, cluster.plan)
        jobs = _prepare(client, cluster, task)
        run = _Run(self, client, cluster.plan, task, jobs, on_output)
        try:
            run.to_the_end()
        except _Silent:
            # A restart of the service must not end hours of work: the jobs go on.
            raise
        except BaseException:
            run.cancel_all()
            raise
        return [job.failure for job in jobs]


def _refuse_impossible(client: Client, plan: ClusterPlan) -> None:
    try:
        clusters, workers = client.clusters(), client.workers()
    except (Refused, NoSuchJob):  # a service may hide its workers
        return
    storage = request.config(plan.spec).storage
    for node in plan.nodes:
        if reason := offers.never(request.resources(plan, node), storage, clusters, workers):
            raise Refused(
                f"GPULab cannot run this job: {reason}", f"gpubed resources {plan.cluster}"
            )


def _prepare(client: Client, cluster: Cluster, task: Task) -> list[_Job]:
    plan = cluster.plan
    made, storage = [], plan.spec.storage
    label = request.label(plan.cluster, cluster.allocation.uuid)
    root = request.folder(plan.spec, task.run_id)
    own = task.own | {record.NAME}
    for number, (world, node) in enumerate(zip(task.worlds, plan.nodes, strict=True)):
        several = len(task.worlds) > 1
        folder = f"{root}/{world.here.name}" if several else root
        mark = f"gpubed-{secrets.token_hex(8)}"
        name = f"gpubed-{plan.cluster}-{task.run_id}-{number}-{secrets.token_hex(3)}"
        definition = request.render(
            plan,
            node,
            name=name,
            labels=f"{label} job={task.job} trial={number}",
            project_urn=client.login.project_urn(request.config(plan.spec).project),
            task=task,
            command=world.command,
            environment={
                "GPUBED_RUN_DIR": folder,
                "GPUBED_SHARED": storage.shared.path,
                "GPUBED_DATASETS": f"{storage.shared.path}{storage.datasets}",
                "GPUBED_SCRATCH": storage.scratch.path if storage.scratch else "",
                "GPUBED_TRIAL": str(number),
                **task.environment,
            },
            mark=mark,
        )
        made.append(_Job(world, definition, Parcel(mark, own), folder))
    return made


class _Run:
    def __init__(
        self,
        launcher: GpulabLauncher,
        client: Client,
        plan: ClusterPlan,
        task: Task,
        jobs: Sequence[_Job],
        on_output: Callable[[str], None],
    ) -> None:
        self._poll_s, self._silence_s, self._settle_s, self._late_s = launcher.times
        self._client, self._jobs, self._say = client, jobs, on_output
        self._cluster, self._here = plan.cluster, task.here
        options = request.config(plan.spec)
        self._parallel, self._patience_s = options.parallel, options.patience
        self._answered = time.monotonic()

    def to_the_end(self) -> None:
        waiting = list(self._jobs)
        while waiting or self._live:
            while waiting and len(self._live) < self._parallel:
                self._submit(waiting.pop(0))
            for job in self._live:
                self._look(job)
            if self._live:
                time.sleep(self._poll_s)

    @property
    def _live(self) -> list[_Job]:
        return [job for job in self._jobs if job.id and not job.ended]

    def _submit(self, job: _Job) -> None:
        job.asked = True
        self._write_down()
        try:
            try:
                job.id = self._client.submit(job.definition)
            except Unanswered as error:
                job.id = self._find(job, error)
        except GpubedError as error:
            job.over = not isinstance(error, Unanswered)
            self._write_down()
            if len(self._jobs) == 1 or not any(other.id for other in self._jobs):
                raise
            # A refused job, for a quota say, does not end those that run already.
            helps = f" ({error.hint})" if isinstance(error, Unanswered) else ""
            job.ended, job.failure = True, error.message + helps
            self._say(job.say(job.failure))
            return
        job.since = time.monotonic()
        self._write_down()
        self._say(job.say(f"gpulab: submitted as job {job.id}"))

    def _find(self, job: _Job, error: Unanswered) -> str:
        """Return the id of a job whose submission got no answer; Unanswered if it is unlisted."""
        self._say(job.say(f"{error.message}; looking whether the job is there"))
        until = time.monotonic() + self._late_s
        while time.monotonic() < until:
            with suppress(GpubedError):
                if found := self._known_as(job):
                    return found
            time.sleep(self._poll_s)
        raise Unanswered(
            f"{error.message}; job {job.definition.name} may exist all the same, or come to",
            f"gpubed status {self._cluster} tells; gpubed down {self._cluster} cancels it",
        ) from error

    def _known_as(self, job: _Job) -> str:
        ids = [one.uuid for one in self._client.jobs() if one.name == job.definition.name]
        return ids[0] if ids else ""

    def _write_down(self) -> None:
        rows = [
            record.Row(name=job.definition.name, id=job.id, open=job.asked and not job.over)
            for job in self._jobs
        ]
        record.write(self._here, rows)

    def _look(self, job: _Job) -> None:
        try:
            now = self._client.job(job.id)
            self._answered = time.monotonic()
            self._tell(job, now)
            if now.status not in WAITING:
                self._read_log(job)
            if now.ended:
                self._over(job)
                self._end(job, now)
            elif now.status in WAITING:
                self._mind_patience(job, now)
        except NoSuchJob:
            self._over(job)
            self._fail(job, "GPULab has forgotten it: somebody deleted it")
        except Unanswered as error:
            self._bear(error)

    def _over(self, job: _Job) -> None:
        job.over = True
        self._write_down()

    def _tell(self, job: _Job, now: RemoteJob) -> None:
        said = f"{now.status} {now.explanation}".strip()
        if said != job.status:
            job.status = said
            self._say(job.say(f"gpulab: {said}"))

    def _bear(self, error: Unanswered) -> None:
        silent = time.monotonic() - self._answered
        if silent > self._silence_s:
            ids = ", ".join(job.id for job in self._live)
            raise _Silent(
                f"{error.message}, for {silent / 60:.0f} minutes; no longer followed: {ids}",
                f"gpubed status {self._cluster} tells what became of them; "
                f"gpubed down {self._cluster} cancels them",
            ) from error
        self._say(f"{error.message}; trying again")

    def _mind_patience(self, job: _Job, now: RemoteJob) -> None:
        waited = time.monotonic() - job.since
        if self._patience_s is not None and waited > self._patience_s:
            self._client.cancel(job.id)
            why = f": {now.explanation}" if now.explanation else ""
            self._fail(job, f"it waited {waited:.0f} s for a worker and was cancelled{why}")

    def _read_log(self, job: _Job, *, last: bool = False) -> None:
        content = self._client.log(job.id, job.offset)
        job.offset += len(content)
        # The limit bounds memory for output without line ends.
        *lines, job.rest = (job.rest[-_LONGEST_LINE:] + content).split(b"\n")
        if last and job.rest:
            lines, job.rest = [*lines, job.rest], b""
        for raw in lines:
            line = raw.decode("utf-8", "replace").rstrip("\r")
            if not job.parcel.takes(line):
                job.tail.append(line)
                self._say(job.say(line))

    def _end(self, job: _Job, now: RemoteJob) -> None:
        self._settle(job, now)
        facts = None
        try:
            facts = job.parcel.unpack(job.world.here)
        except Damaged as error:
            problem = f"{error.message}; on the project storage they may be in {job.folder}"
        for name in job.parcel.left_out:
            self._say(job.say(f"{name!r} is left out: gpubed's own files have this name"))
        if facts and facts.left:
            left = ", ".join(facts.left)
            self._say(job.say(f"too large to come back, left in {job.folder}: {left}"))
        if now.status != "FINISHED":
            self._fail(job, self._reason(job, now, facts.exit_code if facts else None))
        elif facts is None:
            self._fail(job, problem)
        elif facts.exit_code:
            self._fail(job, f"it ended with exit code {facts.exit_code}")
        job.ended = True

    def _settle(self, job: _Job, now: RemoteJob) -> None:
        """Wait for the end of the log, which may arrive late, or never for a cancelled job."""
        patience = self._settle_s if now.status == "FINISHED" else 2 * self._poll_s
        until = time.monotonic() + patience
        while not job.parcel.whole and time.monotonic() < until:
            time.sleep(self._poll_s)
            self._read_log(job)
        self._read_log(job, last=True)

    def _reason(self, job: _Job, now: RemoteJob, code: int | None) -> str:
        said = ""
        with suppress(GpubedError):
            told = [event.msg for event in self._client.events(job.id) if event.msg]
            said = told[-1] if told else ""
        words = {
            "HALTED": "GPULab halted it to make room for others",
            "CANCELLED": "it was cancelled",
            "DELETED": "it was deleted",
        }
        reason = words.get(now.status, f"GPULab says {now.status}")
        if code is not None:
            reason += f", exit code {code}"
        return f"{reason}: {said}" if said else reason

    def _fail(self, job: _Job, reason: str) -> None:
        job.ended = True
        lines = "".join(f"\n  | {line}" for line in job.tail)
        job.failure = f"job {job.id}: {reason}{lines}"

    def cancel_all(self) -> None:
        """Cancel all running jobs, wait for their ends, and report those that may still run."""
        for job in self._jobs:
            if job.asked and not job.id and not job.over:  # interrupted before the answer came
                with suppress(GpubedError):
                    job.id = self._known_as(job)
                job.ended = not job.id
        left = self._live
        if left:
            self._say(f"gpulab: cancelling {len(left)} job(s)")
        for job in left:
            with suppress(GpubedError):
                self._client.cancel(job.id)
        until = time.monotonic() + _CANCEL_S
        while left and time.monotonic() < until:
            left = [job for job in left if not self._is_over(job)]
            if left:
                time.sleep(self._poll_s)
        for job in left:
            self._say(job.say(f"gpulab: job {job.id} may still run; cancel it by hand"))

    def _is_over(self, job: _Job) -> bool:
        with suppress(GpubedError):
            if self._client.is_over(job.id):
                self._over(job)
        return job.over

"""Runs jobs on GPULab: submits, follows and cancels them, and collects results.

A job succeeds if GPULab reports `FINISHED` and its results are complete, with exit code 0. Names
are on disk before each submission and ids after it, so that a crash loses no job.
"""

from __future__ import annotations

import json
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from gpubed.backends.gpulab import offers, request
from gpubed.backends.gpulab.client import WAITING, Client, NoSuchJob, RemoteJob, Unanswered
from gpubed.backends.gpulab.config import Config
from gpubed.backends.gpulab.parcel import Damaged, Parcel
from gpubed.core import files, reading
from gpubed.core.errors import GpubedError, Refused
from gpubed.nodes.allocation import Cluster
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.base import Ended, JobService, Task, World

RECORD = "jobs.json"  # in a run's folder, since the service lists only one page of jobs
_POLL_S = 2.0
_SILENCE_S = 600.0  # jobs are followed through outages of the service up to this long
_SETTLE_S = 20.0  # a log may grow this long after its job's end
_CANCEL_S = 60.0
_LATE_S = 60.0  # time to find a job whose submission got no answer
_LAST_LINES = 10
_LONGEST_LINE = 2**20


class Row(BaseModel):
    """A job in a run's record; `id` is empty before an answer, `open` None in older records."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    id: str = Field("", pattern=r"^([0-9a-fA-F-]{36})?$")
    open: bool | None = None


def left(runs: Path) -> Iterator[tuple[Path, Row]]:
    """Yield the jobs of all runs that GPULab may still run, each with the path of its record."""
    for path in sorted(runs.glob(f"*/{RECORD}")):
        fix = f"cancel what runs at GPULab by hand, then: rm {quote(str(path))}"
        for row in reading.file(path, fix).json(list[Row]):
            if bool(row.id) if row.open is None else row.open:
                yield path, row


class _Silent(GpubedError):
    """The service did not answer for `_SILENCE_S`."""


@dataclass
class _Job:
    world: World
    definition: dict[str, Any]
    parcel: Parcel
    folder: str
    id: str = ""
    attempted: bool = False  # whether it was submitted, with or without an answer
    status: str = ""
    since: float = 0.0
    offset: int = 0
    rest: bytes = b""
    tail: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    ended: bool = False  # no longer followed
    over: bool = False  # ended or gone at GPULab
    failure: str = ""

    @property
    def name(self) -> str:
        return str(self.definition["name"])


class GpulabLauncher(JobService):
    """One GPULab job per world."""

    times = (_POLL_S, _SILENCE_S, _SETTLE_S, _LATE_S)

    def run(self, cluster: Cluster, task: Task, on_output: Callable[[str], None]) -> list[Ended]:
        """Run all worlds to their ends; see `JobService.run`."""
        run = _Run(self, cluster, task, on_output)
        try:
            run.to_the_end()
        except _Silent:
            raise  # jobs go on: a restart of the service must not end hours of work
        except BaseException:
            run.cancel_all()
            raise
        return [Ended(job.failure) for job in run.jobs]


class _Run:
    def __init__(
        self,
        launcher: GpulabLauncher,
        cluster: Cluster,
        task: Task,
        on_output: Callable[[str], None],
    ) -> None:
        self._poll_s, self._silence_s, self._settle_s, self._late_s = launcher.times
        self._cluster, self._here, self._output = cluster.plan.cluster, task.here, on_output
        self._options = Config.of(cluster.plan.spec.backend)
        self._client = Client(self._options)
        self._refuse_impossible(cluster.plan)
        self.jobs = self._prepared(cluster, task)
        self._answered = time.monotonic()

    def _refuse_impossible(self, plan: ClusterPlan) -> None:
        try:
            clusters, workers = self._client.clusters(), self._client.workers()
        except (Refused, NoSuchJob):  # the service does not list its workers
            return
        for reason in offers.impossible(plan, clusters, workers):
            raise Refused(
                f"GPULab cannot run this job: {reason}", f"gpubed resources {plan.cluster}"
            )

    def _prepared(self, cluster: Cluster, task: Task) -> list[_Job]:
        plan = cluster.plan
        made, storage = [], plan.spec.storage
        label = request.label(plan.cluster, cluster.allocation.uuid)
        root = request.folder(plan.spec, task.run_id)
        for number, (world, node) in enumerate(zip(task.worlds, plan.nodes, strict=True)):
            folder = f"{root}/{world.here.name}" if len(task.worlds) > 1 else root
            mark = f"gpubed-{secrets.token_hex(8)}"
            definition = request.render(
                plan,
                node,
                name=f"gpubed-{plan.cluster}-{task.run_id}-{number}-{secrets.token_hex(3)}",
                labels=f"{label} job={task.job} trial={number}",
                project_urn=self._client.login.project_urn(self._options.project),
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
            made.append(_Job(world, definition, Parcel(mark, task.own | {RECORD}), folder))
        return made

    def to_the_end(self) -> None:
        waiting = list(self.jobs)
        while waiting or self._live:
            while waiting and len(self._live) < self._options.parallel:
                self._submit(waiting.pop(0))
            for job in self._live:
                self._poll(job)
            if self._live:
                time.sleep(self._poll_s)

    @property
    def _live(self) -> list[_Job]:
        return [job for job in self.jobs if job.id and not job.ended]

    def _say(self, job: _Job, text: str) -> None:
        self._output(f"{job.world.label}: {text}" if job.world.label else text)

    def _submit(self, job: _Job) -> None:
        job.attempted = True
        self._write_down()
        try:
            try:
                job.id = self._client.submit(job.definition)
            except Unanswered as error:
                job.id = self._find(job, error)
        except GpubedError as error:
            job.over = not isinstance(error, Unanswered)
            self._write_down()
            if not any(other.id for other in self.jobs):
                raise
            # A refused job, for a quota say, does not end those that run already.
            hint = "" if job.over else f" ({error.hint})"
            job.ended, job.failure = True, error.message + hint
            self._say(job, job.failure)
            return
        job.since = time.monotonic()
        self._write_down()
        self._say(job, f"gpulab: submitted as job {job.id}")

    def _find(self, job: _Job, error: Unanswered) -> str:
        """Return the id of a job whose submission got no answer; raise Unanswered if unlisted."""
        self._say(job, f"{error.message}; looking whether the job is there")
        until = time.monotonic() + self._late_s
        while time.monotonic() < until:
            if found := self._listed(job):
                return found
            time.sleep(self._poll_s)
        raise Unanswered(
            f"{error.message}; job {job.name} may exist all the same, or come to",
            f"gpubed status {self._cluster} tells; gpubed down {self._cluster} cancels it",
        ) from error

    def _listed(self, job: _Job) -> str:
        with suppress(GpubedError):
            return next((found.uuid for found in self._client.jobs() if found.name == job.name), "")
        return ""

    def _write_down(self) -> None:
        rows = [
            {"name": job.name, "id": job.id, "open": job.attempted and not job.over}
            for job in self.jobs
        ]
        files.write(self._here / RECORD, json.dumps(rows, indent=2).encode() + b"\n")

    def _poll(self, job: _Job) -> None:
        try:
            now = self._client.job(job.id)
            self._answered = time.monotonic()
            status = f"{now.status} {now.explanation}".strip()
            if status != job.status:
                job.status = status
                self._say(job, f"gpulab: {status}")
            if now.status not in WAITING:
                self._read_log(job)
            if now.ended:
                self._over(job)
                self._end(job, now)
            elif now.status in WAITING:
                self._cancel_if_overdue(job, now)
        except NoSuchJob:
            self._over(job)
            self._fail(job, "GPULab has no such job: it was deleted")
        except Unanswered as error:
            self._tolerate(error)

    def _over(self, job: _Job) -> None:
        job.over = True
        self._write_down()

    def _tolerate(self, error: Unanswered) -> None:
        silent = time.monotonic() - self._answered
        if silent > self._silence_s:
            ids = ", ".join(job.id for job in self._live)
            raise _Silent(
                f"{error.message}, for {silent / 60:.0f} minutes; no longer followed: {ids}",
                f"gpubed status {self._cluster} tells what became of them; "
                f"gpubed down {self._cluster} cancels them",
            ) from error
        self._output(f"{error.message}; trying again")

    def _cancel_if_overdue(self, job: _Job, now: RemoteJob) -> None:
        waited, patience_s = time.monotonic() - job.since, self._options.patience
        if patience_s is not None and waited > patience_s:
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
                self._say(job, line)

    def _end(self, job: _Job, now: RemoteJob) -> None:
        # The end of the log may arrive late; that of a cancelled job may never.
        patience = self._settle_s if now.status == "FINISHED" else 2 * self._poll_s
        until = time.monotonic() + patience
        while not job.parcel.whole and time.monotonic() < until:
            time.sleep(self._poll_s)
            self._read_log(job)
        self._read_log(job, last=True)
        facts = None
        try:
            facts = job.parcel.unpack(job.world.here)
        except Damaged as error:
            problem = f"{error.message}; on the project storage they may be in {job.folder}"
        for name in job.parcel.left_out:
            self._say(job, f"{name!r} is left out: gpubed's own files have this name")
        if facts and facts.left:
            left = ", ".join(facts.left)
            self._say(job, f"too large to come back, left in {job.folder}: {left}")
        if now.status != "FINISHED":
            self._fail(job, self._reason(job, now, facts.exit_code if facts else None))
        elif facts is None:
            self._fail(job, problem)
        elif facts.exit_code:
            self._fail(job, f"it ended with exit code {facts.exit_code}")
        job.ended = True

    def _reason(self, job: _Job, now: RemoteJob, code: int | None) -> str:
        words = {
            "HALTED": "GPULab halted it to make room for others",
            "CANCELLED": "it was cancelled",
            "DELETED": "it was deleted",
        }
        reason = words.get(now.status, f"GPULab says {now.status}")
        if code is not None:
            reason += f", exit code {code}"
        with suppress(GpubedError):
            for message in [event.msg for event in self._client.events(job.id) if event.msg][-1:]:
                reason += f": {message}"
        return reason

    def _fail(self, job: _Job, reason: str) -> None:
        job.ended = True
        lines = "".join(f"\n  | {line}" for line in job.tail)
        job.failure = f"job {job.id}: {reason}{lines}"

    def cancel_all(self) -> None:
        """Cancel all running jobs, wait for their ends, and report those that may still run."""
        for job in self.jobs:
            if job.attempted and not job.id and not job.over:  # interrupted before the answer
                job.id = self._listed(job)
                job.ended = not job.id
        left = self._live
        if left:
            self._output(f"gpulab: cancelling {len(left)} job(s)")
        for job in left:
            with suppress(GpubedError):
                self._client.cancel(job.id)
        until = time.monotonic() + _CANCEL_S
        while left and time.monotonic() < until:
            for job in left:
                with suppress(GpubedError):
                    if self._client.is_over(job.id):
                        self._over(job)
            if left := [job for job in left if not job.over]:
                time.sleep(self._poll_s)
        for job in left:
            self._say(job, f"gpulab: job {job.id} may still run; cancel it by hand")

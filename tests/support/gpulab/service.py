"""GPULab's side of a job's life: queue, workers, states, logs; after the facts of REST v4.0.

Every job's command really runs. Not here, since nothing public says how the service does
it: halting by priority, reservations, e-mail, what is done at `maxDuration`.
"""

import re
import signal
import threading
import time
import uuid
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

ENDED = {"FINISHED", "FAILED", "CANCELLED", "HALTED", "DELETED"}


@dataclass
class Worker:
    """A machine; `free` is what jobs left of (cpus, gpus, memory in GB)."""

    name: str
    cluster: int
    gpu_model: str
    cpus: int = 96
    gpus: int = 16
    memory_gb: int = 512
    cuda: int = 12
    free: list = field(default_factory=list)

    def __post_init__(self):
        self.free = [self.cpus, self.gpus, self.memory_gb]


def default_workers():
    return [
        Worker("worker6a", 6, "Tesla V100-SXM3-32GB"),
        Worker("worker6b", 6, "Tesla V100-SXM3-32GB"),
        Worker("worker5a", 5, "NVIDIA GeForce RTX 3080", gpus=4),
    ]


@dataclass
class Fault:
    """What becomes of jobs of a name: `queued`, `no-image`, `halt`, `kill`, `delete`, `linger`,
    `truncate` or `lose-line`."""

    job: str
    what: str
    after_lines: int = 10


class Job:
    """One job."""

    def __init__(self, document, owner, folder):
        self.uuid = str(uuid.uuid4())
        self.document, self.owner = document, owner
        self.status, self.wanted = "QUEUED", ""
        self.times, self.events, self.explanations = {}, [], []
        self.worker, self.gpu_ids, self.process = None, [], None
        self.log = Path(folder) / f"{self.uuid}.log"
        self.limit = None

    @property
    def environment(self):
        resources = self.document["request"]["resources"]
        return {
            "GPULAB_JOB_ID": self.uuid,
            "GPULAB_CLUSTER_ID": str(self.worker.cluster),
            "GPULAB_SLAVE_HOSTNAME": self.worker.name,
            "GPULAB_PROJECT": self.document["owner"]["projectUrn"].rsplit("+", 1)[-1],
            "GPULAB_GPUS_RESERVED": str(resources["gpus"]),
            "GPULAB_CPUS_RESERVED": str(resources["cpus"]),
            "GPULAB_MEM_RESERVED": str(resources["cpuMemoryGb"] * 1024),
        }

    def need(self):
        resources = self.document["request"]["resources"]
        return [resources["cpus"], resources["gpus"], resources["cpuMemoryGb"]]

    def content(self):
        """Return the log as the service has it."""
        try:
            content = self.log.read_bytes()
        except FileNotFoundError:
            return b""
        return content if self.limit is None else self.limit(content)


LINGERS_S = 2
# What a log lacks: its end, or one line of those that gpubed's jobs print about themselves.
LACKS = {
    "truncate": lambda content: content[:500],
    "lose-line": lambda content: re.sub(rb"[^\n]*:2/\d+:[^\n]*\n", b"", content),
}


def now():
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Service:
    """Jobs and workers; `step_s` is the time that each state takes at least."""

    def __init__(self, runner, folder, workers=None, step_s=0.02, quota=None):
        self.runner, self.folder = runner, Path(folder)
        self.workers = default_workers() if workers is None else workers
        self.step_s, self.quota = step_s, quota
        self.jobs, self.faults = {}, []
        self._lock, self._closed = threading.RLock(), threading.Event()
        self._threads = []
        self._scheduler = threading.Thread(target=self._schedule, daemon=True)
        self._scheduler.start()

    def close(self):
        """End everything that runs."""
        self._closed.set()
        for job in list(self.jobs.values()):
            if job.process and job.status not in ENDED:
                job.process.stop()
        self._scheduler.join(5)
        for thread in self._threads:
            thread.join(15)

    def submit(self, document, owner, *, hold=False):
        job = Job(document, owner, self.folder)
        with self._lock:
            self.jobs[job.uuid] = job
            self._to(job, "ONHOLD" if hold else "QUEUED", "job received")
        return job

    def over_quota(self, owner):
        mine = [j for j in self.jobs.values() if j.owner == owner and j.status not in ENDED]
        return self.quota is not None and len(mine) >= self.quota

    def ask(self, job, wanted):
        """A user wants another state; returns whether that is possible."""
        with self._lock:
            if job.status in ENDED:
                return False
            if wanted in ("ONHOLD", "QUEUED"):
                if job.status not in ("ONHOLD", "QUEUED"):
                    return False
                self._to(job, wanted, "asked by the user")
                return True
            job.wanted = wanted
            if job.status in ("ONHOLD", "QUEUED"):
                self._to(job, "CANCELLED" if wanted == "CANCELLED" else "HALTED", "never started")
                return True
            self._to(job, "CANCELLING" if wanted == "CANCELLED" else "MUSTHALT", "by the user")
        threading.Thread(target=self._stop, args=(job, wanted), daemon=True).start()
        return True

    def delete(self, job):
        with self._lock:
            self._to(job, "DELETED", "removed")
            self.jobs.pop(job.uuid, None)

    def fault(self, job, *kinds):
        name = job.document["name"]
        return next((f for f in self.faults if f.what in kinds and re.search(f.job, name)), None)

    def _to(self, job, status, message):
        with self._lock:
            if job.status in ENDED and job.status != status:
                return
            job.status = status
            job.times[status] = now()
            job.events.append(
                {
                    "jobId": job.uuid,
                    "type": "STATUS_CHANGE",
                    "time": now(),
                    "newState": status,
                    "msg": message,
                }
            )

    def _schedule(self):
        while not self._closed.wait(self.step_s):
            with self._lock:
                for job in list(self.jobs.values()):
                    if job.status == "QUEUED" and not self.fault(job, "queued"):
                        self._assign(job)
                    elif job.status == "QUEUED":
                        job.explanations = ["No worker has enough free GPUs"]

    def _assign(self, job):
        wanted = job.document["request"]["resources"]
        for worker in self.workers:
            models = wanted.get("gpuModel") or []
            fits = (
                wanted.get("clusterId") in (None, worker.cluster)
                and wanted.get("minCudaVersion", 0) <= worker.cuda
                and (not models or any(m.lower() in worker.gpu_model.lower() for m in models))
                and all(n <= f for n, f in zip(job.need(), worker.free, strict=True))
            )
            if fits:
                worker.free = [f - n for n, f in zip(job.need(), worker.free, strict=True)]
                job.worker, job.explanations = worker, []
                job.gpu_ids = list(range(wanted["gpus"]))
                self._to(job, "ASSIGNED", f"assigned to {worker.name}")
                thread = threading.Thread(target=self._live, args=(job,), daemon=True)
                self._threads.append(thread)
                thread.start()
                return
        job.explanations = ["No worker has enough free resources"]

    def _live(self, job):
        try:
            time.sleep(self.step_s)
            if job.wanted:
                return self._to(job, "CANCELLED", "before it started")
            self._to(job, "STARTING", "pulling the image")
            time.sleep(self.step_s)
            image = job.document["request"]["docker"]["image"]
            if image not in self.runner.images or self.fault(job, "no-image"):
                return self._to(job, "FAILED", f"image {image} could not be pulled: not found")
            if fault := self.fault(job, *LACKS):
                job.limit = LACKS[fault.what]
            with job.log.open("wb") as log:
                try:
                    job.process = self.runner.start(job, log)
                except (OSError, KeyError) as error:
                    return self._to(job, "FAILED", f"the container could not start: {error}")
                self._to(job, "RUNNING", "the container runs")
                self._meddle(job)
                code = job.process.wait()
            return self._ended(job, code)
        finally:
            with self._lock:
                worker = job.worker
                worker.free = [f + n for n, f in zip(job.need(), worker.free, strict=True)]

    def _ended(self, job, code):
        if job.wanted == "CANCELLED":
            return self._to(job, "CANCELLED", "cancelled by the user")
        if job.wanted == "MUSTHALT":
            return self._to(job, "HALTED", "halted to make room for a job of higher priority")
        if code:
            return self._to(job, "FAILED", f"the container exited with status {code}")
        return self._to(job, "FINISHED", "the container exited with status 0")

    def _meddle(self, job):
        fault = self.fault(job, "halt", "kill", "delete")
        if fault is None:
            return

        def meddle():
            # Not before the job is at work, however slow this machine is.
            while job.content().count(b"\n") < fault.after_lines:
                time.sleep(self.step_s)
            if fault.what == "halt":
                self.ask(job, "MUSTHALT")
            elif fault.what == "kill":
                job.process.stop()
            else:
                self.delete(job)
                job.process.stop()

        threading.Thread(target=meddle, daemon=True).start()

    def _stop(self, job, wanted):
        while job.process is None and job.status not in ENDED:
            time.sleep(self.step_s)
        if job.process is None:
            return
        if wanted == "MUSTHALT":
            self._to(job, "HALTING", "SIGUSR1 was sent")
            job.process.signal(signal.SIGUSR1)
        else:
            time.sleep(LINGERS_S if self.fault(job, "linger") else 0)
            job.process.stop()

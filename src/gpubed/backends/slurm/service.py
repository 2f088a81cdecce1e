"""Runs jobs through another cluster's Slurm: submits, follows and cancels them, fetches results."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import PurePosixPath

from gpubed.backends.slurm import queue, request
from gpubed.core import reading
from gpubed.core.copying import MayNotBeRead
from gpubed.core.errors import GpubedError, Refused, UsageError
from gpubed.core.paths import assets
from gpubed.nodes import slurm
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.openssh import Login
from gpubed.nodes.output import SSH_FAILED, follow
from gpubed.spec.plan import ClusterPlan, NodePlan
from gpubed.testbeds.base import Ended, JobService, LayerMaker, Task, World

_EVERY_S = 5  # between two questions about a job: slurmctld answers many users
_CANCEL_S = 60
_AWAY_S = 600.0  # the login may fail this long; the job goes on
_LOST = f"{slurm.FINAL}NODE_FAIL"
_WENT = re.compile(r"srun: error: Node failure on (\S+)")


class SlurmService(JobService):
    """One job of Slurm is one world, on all nodes of the specification."""

    def worlds(self, plan: ClusterPlan) -> Sequence[Sequence[NodePlan]]:
        """Return all nodes as one world."""
        return [plan.nodes]

    def run(self, cluster: Cluster, task: Task, on_output: Callable[[str], None]) -> list[Ended]:
        """Run the world to its end; see `JobService.run`."""
        if task.image:
            raise UsageError(
                "this Slurm starts no containers",
                "leave the image out; a command of your own may start apptainer",
            )
        [world] = task.worlds
        return [_Run(cluster, task, world, on_output).to_the_end()]


class _Run:
    def __init__(
        self, cluster: Cluster, task: Task, world: World, on_output: Callable[[str], None]
    ) -> None:
        self._spec, self._cluster, self._task = cluster.plan.spec, cluster.name, task
        self._world, self._output = world, on_output
        self._asked = request.config(self._spec)
        self._login = Login(self._asked.login)
        folder = self._asked.folder.replace("~", self._login.home, 1)
        self._root = request.root(folder, cluster.name, cluster.allocation.uuid)
        self._folder = f"{self._root}/runs/{task.run_id}"
        self._name = request.job_name(cluster.name, cluster.allocation.uuid, task.run_id)
        self._last, self._went = "", list[str]()

    def to_the_end(self) -> Ended:
        try:
            job = self._submitted()
            self._output(f"slurm: submitted as job {job}")
            code = self._follow(job)
        except _Away:
            raise
        except BaseException:
            with suppress(GpubedError):
                self._login.run(slurm.cancel(self._folder, self._name, _CANCEL_S), timeout=90)
            raise
        missing = self._collect()
        if code or missing:
            if _LOST in self._last:
                went = ", ".join(self._went) or "a node"
                return Ended(f"{went} went, and job {job} with it", "node_lost")
            return Ended(self._last.removeprefix("slurm: ") if code else missing)
        return Ended()

    def _submitted(self) -> str:
        task, login, folder = self._task, self._login, self._folder
        login.send(task.source, task.names, folder, follow=task.follow)
        login.send(assets(), request.PROGRAMS, f"{folder}/.gpubed")
        environment = {
            "GPUBED_RUN_DIR": folder,
            "GPUBED_SHARED": self._root,
            "GPUBED_DATASETS": f"{self._root}/datasets",
            "GPUBED_SCRATCH": "",
            **task.environment,
        }
        if kept := environment.get("GPUBED_CHECKPOINTS"):
            inside = PurePosixPath(kept).relative_to(self._spec.storage.shared.path)
            environment["GPUBED_CHECKPOINTS"] = f"{self._root}/{inside}"
            login.run("mkdir -p %s/%s", self._root, inside)
        prelude = request.prelude(self._asked).replace("%", "%%")
        maker = LayerMaker(
            login,
            prelude + f"{self._root}/tools/bin/python {folder}/.gpubed/{request.PROGRAMS[-1]}",
            f"{self._root}/env",
        )
        python = task.add_packages(maker, folder) or f"{self._root}/env/current"
        slots = str(self._world.ranks // self._world.nodes)
        script = request.script(
            self._asked, python, folder, environment, [slots, *self._world.command]
        )
        options = request.options(self._spec, self._world.nodes)
        options += [f"--job-name={self._name}", f"--output={folder}/{slurm.OUTPUT}"]
        submit = f"sbatch --parsable --no-requeue {shlex.join(options)}"
        answer = login.run(submit, check=False, stdin=script)
        if answer.exit_code or not answer.stdout.strip():
            raise Refused(
                f"Slurm refuses the job: {queue.refusal(answer.stderr.splitlines())}",
                f"gpubed doctor {self._cluster}; gpubed resources {self._cluster}",
            )
        return answer.stdout.strip().split(";")[0]

    def _follow(self, job: str) -> int:
        """Follow a job, also where the connection breaks; return its exit code."""
        heard, lines = time.monotonic(), "+1"
        while True:
            begun = time.monotonic()
            script = slurm.follow(self._folder, job, _EVERY_S, lines)
            code = follow(self._login.command(script), self._hear)
            if code != SSH_FAILED or slurm.FINAL in self._last:
                return code
            if time.monotonic() - begun > 2 * _EVERY_S:
                heard = time.monotonic()
            elif time.monotonic() - heard > _AWAY_S:
                raise _Away(
                    f"the login to {self._login.name} fails; job {job} is no longer followed",
                    f"gpubed status {self._cluster} tells what becomes of it; "
                    f"gpubed down {self._cluster} cancels it",
                )
            self._output(f"slurm: the connection broke; job {job} goes on, following it again")
            lines = "0"  # all of the output comes with the results
            time.sleep(_EVERY_S)

    def _hear(self, line: str) -> None:
        if line.startswith("slurm: "):
            self._last = line
        elif went := _WENT.match(line):
            self._went.append(reading.short(went[1], 64))
        self._output(line)

    def _collect(self) -> str:
        """Fetch the results; return why that failed."""
        try:
            self._login.run("rm -rf %s/.gpubed", self._folder)
            for line in self._login.get(self._folder, self._world.here, self._task.own):
                self._output(line)
        except MayNotBeRead as error:
            return error.message
        except GpubedError as error:
            return f"its results are in {self._folder} on {self._login.name} only: {error.message}"
        return ""


class _Away(GpubedError):
    """The login has failed for long; the job goes on."""

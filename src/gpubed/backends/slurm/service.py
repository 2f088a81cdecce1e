"""Runs jobs on a Slurm cluster: submits, follows and cancels them, and fetches results."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import PurePosixPath

from gpubed.backends.slurm import queue, request
from gpubed.backends.slurm.config import Config
from gpubed.core import reading
from gpubed.core.copying import MayNotBeRead
from gpubed.core.errors import GpubedError, Refused, UsageError
from gpubed.core.paths import assets
from gpubed.nodes import openssh, output
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.openssh import Login
from gpubed.nodes.ssh import Unreachable
from gpubed.spec.plan import ClusterPlan, NodePlan
from gpubed.testbeds.base import Ended, JobService, Task, World

_EVERY_S = 5  # between queries of a job's state: slurmctld serves many users
_CANCEL_S = 60
_TRY_S = 30.0  # a failing login takes less
_AWAY_S = 600.0  # logins may fail this long; the job goes on
_LOST = re.compile(r"srun: error: Node failure on (\S+)")


class SlurmService(JobService):
    """One job of Slurm is one world, on all nodes of the specification."""

    def worlds(self, plan: ClusterPlan) -> Sequence[Sequence[NodePlan]]:
        """Return all nodes as one world."""
        return [plan.nodes]

    def run(self, cluster: Cluster, task: Task, on_output: Callable[[str], None]) -> list[Ended]:
        """Run the world as one job; see `JobService.run`."""
        if task.image:
            hint = "leave the image out; a command of your own may start apptainer"
            raise UsageError("this Slurm starts no containers", hint)
        [world] = task.worlds
        run = _Run(cluster, task, world, on_output)
        try:
            return [run.to_the_end()]
        except Unreachable:
            raise  # the job goes on
        except BaseException:
            run.cancel()
            raise


class _Run:
    def __init__(
        self, cluster: Cluster, task: Task, world: World, on_output: Callable[[str], None]
    ) -> None:
        self._spec, self._cluster, self._task = cluster.plan.spec, cluster.name, task
        self._world, self._output = world, on_output
        self._config, uuid = Config.of(self._spec.backend), cluster.allocation.uuid
        self._login = Login(self._config.login)
        folder = self._login.inside(self._config.folder)
        self._root, self._name = request.names(folder, cluster.name, uuid, task.run_id)
        self._folder = f"{self._root}/runs/{task.run_id}"
        self._last, self._lost = "", list[str]()

    def to_the_end(self) -> Ended:
        job = self._submitted()
        self._output(f"slurm: submitted as job {job}")
        code = self._follow(job)
        missing = self._collect()
        if f"{output.SLURM_END}NODE_FAIL" in self._last:
            lost = ", ".join(self._lost) or "a node"
            return Ended(f"{lost} failed, and job {job} with it", "node_lost")
        return Ended(self._last.removeprefix("slurm: ") if code else missing)

    def cancel(self) -> None:
        with suppress(GpubedError):
            self._login.run(output.slurm_cancel(self._folder, self._name, _CANCEL_S), timeout=90)

    def _submitted(self) -> str:
        task, login, root, folder = self._task, self._login, self._root, self._folder
        openssh.send(login.words, task.source, task.names, folder, follow=task.follow)
        openssh.send(login.words, assets(), request.PROGRAMS, f"{folder}/.gpubed")
        environment = {
            "GPUBED_RUN_DIR": folder,
            "GPUBED_SHARED": root,
            "GPUBED_DATASETS": f"{root}/datasets",
            "GPUBED_SCRATCH": "",
            "GPUBED_GPUS": str(self._spec.nodes[0].gpus.per_node),
            **task.environment,
        }
        if kept := environment.get("GPUBED_CHECKPOINTS"):
            inside = PurePosixPath(kept).relative_to(self._spec.storage.shared.path)
            environment["GPUBED_CHECKPOINTS"] = f"{root}/{inside}"
            login.run("mkdir -p %s/%s", root, inside)
        program = request.prelude(self._config).replace("%", "%%")
        program += f"{root}/tools/bin/python {folder}/.gpubed/{request.PROGRAMS[-1]}"
        python = task.add_packages((login, program, f"{root}/env"), folder)
        words = [str(self._world.ranks // self._world.nodes), *self._world.command]
        script = request.script(
            self._config, python or f"{root}/env/current", folder, environment, words
        )
        options = request.options(self._spec, self._world.nodes)
        options += [f"--job-name={self._name}", f"--output={folder}/{output.SLURM_LOG}"]
        submit = f"sbatch --parsable --no-requeue {shlex.join(options)}"
        answer = login.run(submit, check=False, stdin=script)
        if answer.exit_code or not answer.stdout.strip():
            why = f"Slurm refuses the job: {queue.refusal(answer.stderr.splitlines())}"
            raise Refused(why, f"gpubed doctor {self._cluster}; gpubed resources {self._cluster}")
        return answer.stdout.strip().split(";")[0]

    def _follow(self, job: str) -> int:
        """Follow a job, through broken connections; return its exit code."""
        heard, lines = time.monotonic(), "+1"
        while True:
            begun = time.monotonic()
            script = output.slurm_follow(self._folder, job, _EVERY_S, lines)
            code = output.follow(self._login.command(script), self._hear)
            if code != output.SSH_FAILED or output.SLURM_END in self._last:
                return code
            if time.monotonic() - begun > _TRY_S:
                heard = time.monotonic()
            elif time.monotonic() - heard > _AWAY_S:
                raise Unreachable(
                    f"the login to {self._login.name} fails; job {job} is no longer followed",
                    f"gpubed status {self._cluster} tells what becomes of it; "
                    f"gpubed down {self._cluster} cancels it",
                )
            self._output(f"slurm: the connection broke; job {job} goes on, following it again")
            lines = "0"  # the results have the whole output
            time.sleep(_EVERY_S)

    def _hear(self, line: str) -> None:
        if line.startswith("slurm: "):
            self._last = line
        elif lost := _LOST.match(line):
            self._lost.append(reading.short(lost[1], 64))
        self._output(line)

    def _collect(self) -> str:
        """Fetch the results; return the error, empty without one."""
        try:
            self._login.run("rm -rf %s/.gpubed", self._folder)
            for line in self._login.get(self._folder, self._world.here, self._task.own):
                self._output(line)
        except MayNotBeRead as error:
            return error.message
        except GpubedError as error:
            return f"its results are in {self._folder} on {self._login.name} only: {error.message}"
        return ""

"""The operations of a cluster on Slurm: checks, partitions, jobs and its folder."""

from __future__ import annotations

import shlex
from functools import cached_property
from typing import TYPE_CHECKING

from gpubed.backends.slurm import queue, request
from gpubed.backends.slurm.config import Config
from gpubed.backends.slurm.folder import MARK, FolderDriver
from gpubed.core.errors import GpubedError
from gpubed.nodes.openssh import Login
from gpubed.recipes import recipe as recipes
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.testbeds.base import Existing, Finding, Identity, JobState, JobTestbed, Offer
from gpubed.testbeds.driver import Driver

if TYPE_CHECKING:
    from gpubed.spec.plan import ClusterPlan

_MARKS = f'for one in %s/*/{MARK}; do [ ! -e "$one" ] || echo $(cat "$one") "${{one%%/*}}"; done'


class SlurmTestbed(JobTestbed):
    """A user's view of a Slurm cluster; each query logs in anew."""

    @cached_property
    def _login(self) -> Login:
        return Login(Config.of(self.reach.specification.backend).login)

    @cached_property
    def _folder(self) -> str:
        return self._login.inside(Config.of(self.reach.specification.backend).folder)

    def driver(self, kind: str) -> Driver:
        """Return the driver of the folder."""
        if kind != "volume":
            return super().driver(kind)
        return FolderDriver(self._login, lambda: self.reach.specification)

    def doctor(self, spec: ClusterSpec) -> list[Finding]:
        """Check login, commands, options of jobs, and the tools to build the environment."""
        config = Config.of(spec.backend)
        versions = ("3", *request.pythons(recipes.load(spec.recipe)))
        names, setup = " ".join(f"python{version}" for version in versions), request.prelude(config)
        options = shlex.join(request.options(spec, spec.count))
        more = {
            "test": f"sbatch --test-only {options} --wrap true",
            "folder": f"mkdir -p {config.folder} && [ -w {config.folder} ] && echo yes",
            "python": f"{setup}command -v {names} | head -n 1",
            "compiler": f"{setup}command -v g++ >/dev/null && command -v make",
        }
        login = Login(config.login)
        try:
            answers = queue.ask(login, more)
        except GpubedError as error:
            return [Finding("slurm.login", False, error.message, error.hint)]
        found = [Finding("slurm.login", True, f"{login.name} answers")]
        return [*found, *_findings(spec, answers)]

    def identity(self) -> Identity:
        """Return the Slurm cluster, user and folder."""
        output = self._login.run(f"{queue.SECTIONS['config']}; id -un").stdout
        words = [line.rpartition("=")[2].strip() for line in output.splitlines() if line]
        called = f"{self._folder} by {self._login.name} (Slurm's {words[0]})"
        return Identity(" ".join([*words, self._folder]), called)

    def existing(self) -> list[Existing]:
        """Return the cluster's jobs in the queue, then its folders."""
        found = [job for name, job, _ in queue.jobs(self._login) if name == self.paths.name]
        for line in self._login.run(_MARKS, self._folder).stdout.splitlines():
            uuid, cluster, path = line.split(" ", 2)
            if cluster == self.paths.name:
                found.append(Existing("folder", path, path, uuid, data=True))
        return found

    def remove(self, thing: Existing) -> None:
        """Cancel a job and wait for its end, or remove a folder with its content."""
        if thing.kind == "folder":
            self.driver("volume").delete(thing.id, {"uuid": thing.uuid})
            return
        left = "for _ in $(seq 30); do squeue --noheader --jobs=%s | grep -q . || exit 0; sleep 2; "
        self._login.run(f"scancel %s; {left}done", thing.id, thing.id, check=False, timeout=120)

    def jobs(self, uuid: str) -> list[JobState]:
        """Return the cluster's jobs in the queue, with their reasons for waiting."""
        return [state for _, thing, state in queue.jobs(self._login) if thing.uuid == uuid]

    def resources(self, spec: ClusterSpec) -> list[Offer]:
        """Return the partitions."""
        answers = queue.ask(Login(Config.of(spec.backend).login), {})
        return [*queue.partitions(answers["partitions"]).values()]

    def fits(self, plan: ClusterPlan) -> list[Finding]:
        """Return what Slurm would refuse."""
        return [finding for finding in self.doctor(plan.spec) if not finding.ok]


def _findings(spec: ClusterSpec, answers: dict[str, str]) -> list[Finding]:
    config, version = Config.of(spec.backend), answers["version"]
    on_path = "backend.modules or backend.setup bring one onto the PATH"
    if not version.startswith("slurm"):
        why = f"no sbatch there: {version}"
        return [Finding("slurm.commands", False, why, f"another backend.login; or {on_path}")]
    option, why = queue.refused(config, spec.nodes[0].gpus.per_node, answers)
    test = answers["test"].splitlines()
    if not why and not any(" to start at " in line for line in test):
        option, why = "job", f"Slurm would refuse the job: {queue.refusal(test)}"
    fix = f"gpubed resources {spec.name} lists partitions and their GPUs"
    is_writable = answers["folder"].endswith("yes")
    folder = config.folder if is_writable else f"{config.folder}: {answers['folder']}"
    horovod = "Horovod is left out, for lack of g++ or make: torch.distributed works"
    if answers["compiler"].endswith("make"):
        horovod = "g++ and make are there, to build Horovod"
    python = answers["python"]
    return [
        Finding("slurm.commands", True, version),
        Finding(f"slurm.{option or 'job'}", not why, why or test[-1].partition(": ")[2], fix),
        Finding("slurm.folder", is_writable, folder, "backend.folder: one of your own"),
        Finding("slurm.python", bool(python), python or "there is no Python", on_path),
        Finding("slurm.horovod", True, horovod),
    ]

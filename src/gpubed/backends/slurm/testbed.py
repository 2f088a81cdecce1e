"""A Slurm cluster as a testbed: what there is, and the cluster's jobs and folder."""

from __future__ import annotations

import shlex
import time
from functools import cached_property
from typing import TYPE_CHECKING

from pydantic import BaseModel

from gpubed.backends.slurm import drivers, queue, request
from gpubed.core import reading
from gpubed.core.errors import GpubedError
from gpubed.nodes.openssh import Login
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.testbeds.base import Existing, Finding, Identity, JobState, JobTestbed, Offer
from gpubed.testbeds.driver import Driver

if TYPE_CHECKING:
    from gpubed.nodes.allocation import Allocation
    from gpubed.spec.plan import ClusterPlan

_CANCEL_S, _POLL_S = 60.0, 2.0


class _Mark(BaseModel):
    cluster: str
    uuid: str


class SlurmTestbed(JobTestbed):
    """Checks, lists, removes; each question is a login."""

    @cached_property
    def _login(self) -> Login:
        return Login(request.config(self.reach.specification).login)

    @cached_property
    def _folder(self) -> str:
        folder = request.config(self.reach.specification).folder
        return folder.replace("~", self._login.home, 1)

    def driver(self, kind: str) -> Driver:
        """Return the driver of the folder or of the environment in it."""
        if kind == "volume":
            return drivers.FolderDriver(self._login)
        if kind == "environment":
            return drivers.EnvironmentDriver(self._login, lambda: self.reach.specification)
        return super().driver(kind)

    def doctor(self, spec: ClusterSpec) -> list[Finding]:
        """Look at login, commands, options of jobs, and what builds the environment."""
        asked, recipe = request.config(spec), spec.recipe
        login = Login(asked.login)
        versions = " ".join(f"python{one}" for one in ("3", *request.pythons(recipe)))
        options = shlex.join(request.options(spec, spec.count))
        more = {
            "test": f"sbatch --test-only {options} --wrap true",
            "folder": f"mkdir -p {asked.folder} && [ -w {asked.folder} ] && echo yes",
            "python": f"{request.prelude(asked)}command -v {versions} | head -n 1",
            "compiler": f"{request.prelude(asked)}command -v g++ && command -v make && echo yes",
        }
        try:
            answers = queue.ask(login, more)
        except GpubedError as error:
            return [Finding("slurm.login", False, error.message, error.hint)]
        found = [Finding("slurm.login", True, f"{login.name} answers")]
        return [*found, *_findings(spec, answers)]

    def describe(self, allocation: Allocation) -> dict[str, str]:
        """Return nothing: there are no nodes."""
        return {}

    def identity(self) -> Identity:
        """Return the cluster, user and folder: another folder knows nothing of the cluster."""
        said = self._login.run(f"{queue.SECTIONS['config']}; id -un").stdout.split("\n")
        words = [line.partition("=")[2].strip() or line for line in said if line]
        id_ = " ".join([*words, self._folder])
        return Identity(id_, f"{self._folder} by {self._login.name} (Slurm's {words[0]})")

    def existing(self) -> list[Existing]:
        """Return the cluster's jobs in the queue, then its folders."""
        found = [thing for thing, _ in queue.jobs(self._login)]
        found = [thing for thing in found if queue.cluster_of(thing.name) == self.paths.name]
        listing = f'for mark in %s/*/{drivers.MARK}; do [ ! -e "$mark" ] || '
        listing += '{ printf \'%%s\\t\' "${mark%%/*}"; cat "$mark"; echo; }; done'
        for line in self._login.run(listing, self._folder).stdout.splitlines():
            path, _, said = line.partition("\t")
            mark = reading.reply(said, f"{path}/{drivers.MARK}", f"rm -r {path}").json(_Mark)
            if mark.cluster == self.paths.name:
                found.append(Existing("folder", path, path, mark.uuid, data=True))
        return found

    def remove(self, thing: Existing) -> None:
        """Cancel a job and wait for its end, or remove a folder with all that is in it."""
        if thing.kind == "folder":
            drivers.remove(self._login, thing.id, thing.uuid)
            return
        until = time.monotonic() + _CANCEL_S
        while time.monotonic() < until:
            left = "scancel %s; squeue --noheader --jobs=%s 2>/dev/null"
            if not self._login.run(left, thing.id, thing.id, check=False).stdout.strip():
                break
            time.sleep(_POLL_S)

    def jobs(self, uuid: str) -> list[JobState]:
        """Return the cluster's jobs that are in the queue, with why each waits."""
        return [state for thing, state in queue.jobs(self._login) if thing.uuid == uuid]

    def resources(self, spec: ClusterSpec) -> list[Offer]:
        """Return the partitions."""
        answers = queue.ask(Login(request.config(spec).login), {})
        return [one.offer for one in queue.partitions(answers["partitions"]).values()]

    def fits(self, plan: ClusterPlan) -> list[Finding]:
        """Return what Slurm would refuse."""
        return [one for one in self.doctor(plan.spec) if not one.ok]


def _findings(spec: ClusterSpec, answers: dict[str, str]) -> list[Finding]:
    asked, gpus = request.config(spec), spec.nodes[0].gpus
    version = answers["version"].strip()
    if not version.startswith("slurm"):
        fix = "backend.login is a host with Slurm's commands; backend.setup may put them on PATH"
        return [Finding("slurm.commands", False, f"no sbatch there: {version}", fix)]
    found = [Finding("slurm.commands", True, version)]
    option, why = queue.refused(asked, gpus, answers)
    said = answers["test"].strip().splitlines()
    fix = f"gpubed resources {spec.name} lists partitions and their GPUs"
    if not why and not any(" to start at " in line for line in said):
        option, why = "job", f"Slurm would refuse the job: {queue.refusal(said)}"
    if why:
        found.append(Finding(f"slurm.{option}", False, why, fix))
    else:
        found.append(Finding("slurm.job", True, said[-1].removeprefix("sbatch: ")))
    is_writable = answers["folder"].strip().endswith("yes")
    told = asked.folder if is_writable else f"{asked.folder}: {answers['folder'].strip()}"
    found.append(Finding("slurm.folder", is_writable, told, "backend.folder: one of your own"))
    python = answers["python"].strip()
    fix = "backend.modules or backend.setup bring one onto the PATH"
    found.append(Finding("slurm.python", bool(python), python or "there is no Python", fix))
    told = "Horovod is left out, for want of g++ or make: torch.distributed and torchrun work"
    if answers["compiler"].strip().endswith("yes"):
        told = "g++ and make are there, to build Horovod"
    return [*found, Finding("slurm.horovod", True, told)]

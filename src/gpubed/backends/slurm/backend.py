"""An existing Slurm cluster as a kind of testbed: it runs jobs and lends no nodes."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from gpubed.backends.slurm import request
from gpubed.backends.slurm.config import Config
from gpubed.spec.clusterspec import ClusterSpec, Problem
from gpubed.testbeds.base import JobBackend

# Pulumi's library is slow to import, and most verbs do not need it.
if TYPE_CHECKING:
    import pulumi

    from gpubed.backends.slurm.service import SlurmService
    from gpubed.spec.plan import ClusterPlan


class SlurmBackend(JobBackend):
    """Jobs of a Slurm cluster."""

    name = "slurm"
    return_hint = "put `backend.login` and `backend.folder` of cluster.yml back"

    def check(self, spec: ClusterSpec) -> list[Problem]:
        """Refuse groups that differ, and CPUs that Slurm cannot allocate."""
        found, machine = super().check(spec), spec.nodes[0].machine
        if len(spec.nodes) > 1:
            why = "all nodes of a job have the same number of GPUs and CPUs"
            found.append(Problem(("nodes", 1), why, "one group with `count`"))
        if machine.cpus is None or machine.cpus != int(machine.cpus):
            why = "Slurm must be told whole CPUs per node"
            found.append(Problem(("nodes", 0, "machine"), why, "machine: {cpus: 8}"))
        return found

    def component(
        self,
        plan: ClusterPlan,
        uuid: pulumi.Output[str],
        public_key: pulumi.Output[str],
        opts: pulumi.ResourceOptions | None,
    ) -> pulumi.Output[dict[str, Any]]:
        """Declare the cluster's folder, with the Python environment in it, and no nodes."""
        from gpubed.backends.component import Component
        from gpubed.testbeds.resources import Volume

        config, component = Config.of(plan.spec.backend), Component(self.name, plan.cluster, opts)
        inputs = {"cluster": plan.cluster, "uuid": uuid, "folder": config.folder}
        inputs |= request.environment(config, plan.spec.recipe)
        Volume("folder", self.name, inputs, component.retained)
        return component.grant_none(plan, uuid)

    def service(self) -> SlurmService:
        """Return the service that submits and follows jobs, and collects their results."""
        from gpubed.backends.slurm.service import SlurmService

        return SlurmService()

    def links(self, spec: ClusterSpec) -> dict[str, str]:
        """Return nothing: Slurm has no web pages of its own."""
        return {}

    def warnings(self, spec: ClusterSpec) -> list[str]:
        """Return the options of `sbatch` for a job."""
        return [f"jobs are submitted by: sbatch {shlex.join(request.options(spec, spec.count))}"]

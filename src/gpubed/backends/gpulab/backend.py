"""GPULab as a kind of testbed: it runs jobs and lends no nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpubed.backends.gpulab import request
from gpubed.backends.gpulab.config import Config
from gpubed.core import addresses
from gpubed.spec.clusterspec import ClusterSpec, Problem
from gpubed.spec.sections import MOST_GPUS
from gpubed.testbeds.base import JobBackend

# Pulumi's library is slow to import, and most verbs do not need it.
if TYPE_CHECKING:
    import pulumi

    from gpubed.backends.gpulab.launcher import GpulabLauncher
    from gpubed.spec.plan import ClusterPlan

_SHORTEST_S, _LONGEST_S = 60, 14 * 86400
_APART = (
    "each node is a job of its own here, in one container on one worker, and no cluster of "
    "GPULab lets jobs reach each other, so there is no Horovod world over {count} jobs"
)


class GpulabBackend(JobBackend):
    """Jobs of GPULab."""

    name = "gpulab"
    return_hint = "put `backend.master` and `backend.certificate` of cluster.yml back"

    def canonical_id(self, id_: str) -> str:
        """Return an id in normal form: service (absent in former versions) and user."""
        *service, user = id_.split(" ")
        return " ".join([*map(addresses.url, service), addresses.urn(user)])

    def check(self, spec: ClusterSpec) -> list[Problem]:
        """Refuse worlds over several jobs, and resources that GPULab does not give."""
        found = [*_nodes(spec), *super().check(spec)]
        if not _SHORTEST_S <= spec.lease.duration <= _LONGEST_S:
            why = "GPULab ends every job after two weeks"
            found.append(Problem(("lease", "duration"), why, "1 min to 14 d"))
        return found

    def component(
        self,
        plan: ClusterPlan,
        uuid: pulumi.Output[str],
        public_key: pulumi.Output[str],
        opts: pulumi.ResourceOptions | None,
    ) -> pulumi.Output[dict[str, Any]]:
        """Declare an allocation without nodes; its uuid labels the jobs."""
        from gpubed.backends.component import Component

        return Component(self.name, plan.cluster, opts).grant_none(plan, uuid)

    def service(self) -> GpulabLauncher:
        """Return the service that submits and follows jobs, and collects their results."""
        from gpubed.backends.gpulab.launcher import GpulabLauncher

        return GpulabLauncher()

    def links(self, spec: ClusterSpec) -> dict[str, str]:
        """Return the link to GPULab's own JupyterHub, which has its own login."""
        return {"jupyterhub": Config.of(spec.backend).jupyterhub}


def _nodes(spec: ClusterSpec) -> Iterator[Problem]:
    if Config.of(spec.backend).jobs == "one" and spec.count > 1:
        gpus = sum(group.count * max(1, group.gpus.per_node) for group in spec.nodes)
        one = f"one node with gpus: {gpus} for one world; " if gpus <= MOST_GPUS else ""
        trials = f"backend.jobs: trials for {spec.count} worlds, one per job"
        yield Problem(("nodes",), _APART.format(count=spec.count), one + trials)
    first = spec.nodes[0].gpus.per_node
    for position, group in enumerate(spec.nodes):
        if group.gpus.per_node != first:
            why = "trials of different sizes have no mean"
            yield Problem(("nodes", position, "gpus"), why, f"{first}, as in the first group")
        try:
            request.amounts(group.machine)
        except ValueError as error:
            yield Problem(("nodes", position), str(error), "machine: {cpus: 4, memory: 16 GB}")

"""The virtualwall backend: nodes of the Virtual Wall and other Fed4FIRE testbeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpubed.backends.virtualwall.config import DATA_RECORD
from gpubed.core import places
from gpubed.core.errors import UsageError
from gpubed.spec.clusterspec import Problem
from gpubed.testbeds.base import Backend

# TLS, XML and SSH libraries are slow to import, and most verbs need none of them.
if TYPE_CHECKING:
    import pulumi

    from gpubed.backends.virtualwall.testbed import VirtualWallTestbed
    from gpubed.core.paths import ClusterPaths
    from gpubed.spec.clusterspec import ClusterSpec
    from gpubed.spec.plan import ClusterPlan, NodePlan
    from gpubed.testbeds.reach import Reach


class VirtualWallBackend(Backend):
    """Nodes that an aggregate manager grants."""

    name = "virtualwall"
    exchanges_keys = False
    # A physical machine goes through its firmware first.
    boots_within_s = 600.0
    restarts = True
    the_way_back = "put `aggregate`, `authority` and `project` of cluster.yml's `backend:` back"
    data_records = frozenset({DATA_RECORD})

    def spelled(self, id_: str) -> str:
        """Return an id with aggregate and authority in their one spelling."""
        aggregate, _, rest = id_.partition(" ")
        authority, _, project = rest.partition(" ")
        return f"{places.urn(aggregate)} {places.host(authority)} {project}" if rest else id_

    def bind(self, reach: Reach, paths: ClusterPaths) -> VirtualWallTestbed:
        """Return the testbed as a cluster sees it."""
        from gpubed.backends.virtualwall.testbed import VirtualWallTestbed

        return VirtualWallTestbed(self, reach, paths)

    def check(self, spec: ClusterSpec) -> list[Problem]:
        """Refuse what the testbed cannot do."""
        from gpubed.backends.virtualwall import limits

        return list(limits.problems(spec))

    def shapes_links(self, spec: ClusterSpec) -> bool:
        """Return true: links are requested with their capacity, and the testbed enforces it."""
        return True

    def warnings(self, spec: ClusterSpec) -> list[str]:
        """Name images that the testbed's default stands for."""
        from gpubed.backends.virtualwall import limits

        return limits.warnings(spec)

    def foretold(self, plan: ClusterPlan, node: NodePlan) -> dict[str, Any]:
        """Return the planned address; a node that is alone is in no link and gets none."""
        return super().foretold(plan, node) if len(plan.nodes) > 1 else {"experiment_address": None}

    def component(
        self, plan: ClusterPlan, uuid: pulumi.Output[str], public_key: pulumi.Output[str]
    ) -> pulumi.Output[dict[str, Any]]:
        """Declare the slice and its nodes."""
        from gpubed.backends.virtualwall.component import Cluster

        return Cluster(plan, uuid, public_key).allocation

    def export(self, plan: ClusterPlan, kind: str) -> str:
        """Return the request, or a jFed experiment specification."""
        from gpubed.backends.virtualwall import rspec

        if kind == "rspec":
            return rspec.without(rspec.request(plan), ())
        if kind == "espec":
            return rspec.specification(plan)
        raise UsageError(f"the testbed has no {kind}", "espec or rspec")


def create() -> VirtualWallBackend:
    """Make the backend; the registry calls this."""
    return VirtualWallBackend()

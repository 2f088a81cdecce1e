"""The virtualwall backend: nodes of the Virtual Wall and other Fed4FIRE testbeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpubed.backends.virtualwall.config import DATA_RECORD
from gpubed.core.errors import UsageError
from gpubed.spec.clusterspec import Problem
from gpubed.testbeds.base import Backend, Driver, Existing, Finding, Lease, Offer

# TLS, XML and SSH libraries are slow to import, and most verbs need none of them.
if TYPE_CHECKING:
    from datetime import datetime

    import pulumi

    from gpubed.nodes.allocation import Allocation
    from gpubed.spec.clusterspec import ClusterSpec
    from gpubed.spec.plan import ClusterPlan, NodePlan

"""Where a cluster's state says which part of the testbed's folder is the cluster's."""


class VirtualWallBackend(Backend):
    """Nodes that an aggregate manager grants."""

    name = "virtualwall"
    exchanges_keys = False
    data_records = frozenset({DATA_RECORD})

    def check(self, spec: ClusterSpec) -> list[Problem]:
        """Refuse what the testbed cannot do."""
        from gpubed.backends.virtualwall import limits

        return limits.problems(spec)

    def shapes_links(self, spec: ClusterSpec) -> bool:
        """Links are asked for with their capacity, and the testbed holds them to it."""
        return True

    def warnings(self, spec: ClusterSpec) -> list[str]:
        """Name images that the testbed's default stands for."""
        from gpubed.backends.virtualwall import limits

        return limits.warnings(spec)

    def doctor(self, spec: ClusterSpec | None) -> list[Finding]:
        """Look at login, servers, project and bastion."""
        from gpubed.backends.virtualwall import doctor

        return doctor.findings(spec)

    def foretold(self, plan: ClusterPlan, node: NodePlan) -> dict[str, Any]:
        """Return the planned address; a node that is alone is in no link and gets none."""
        return super().foretold(plan, node) if len(plan.nodes) > 1 else {"experiment_address": None}

    def component(
        self, plan: ClusterPlan, uuid: pulumi.Output[str], public_key: pulumi.Output[str]
    ) -> pulumi.Output[dict[str, Any]]:
        """Declare the slice and its nodes."""
        from gpubed.backends.virtualwall.component import Cluster

        return Cluster(plan, uuid, public_key).allocation

    def driver(self, kind: str) -> Driver:
        """Return the driver of a slice or node."""
        from gpubed.backends.virtualwall.node import NodeDriver
        from gpubed.backends.virtualwall.slice import SliceDriver

        drivers: dict[str, type[Driver]] = {"slice": SliceDriver, "node": NodeDriver}
        return drivers[kind]() if kind in drivers else super().driver(kind)

    def describe(self, allocation: Allocation) -> dict[str, str]:
        """Return the state of each node, as the aggregate tells it."""
        from gpubed.backends.virtualwall import census

        return census.describe(allocation)

    def existing(self, cluster: str) -> list[Existing]:
        """Return the slices of a cluster's name that hold nodes."""
        from gpubed.backends.virtualwall import census

        return census.existing(cluster)

    def remove(self, thing: Existing) -> None:
        """Give a slice's nodes back."""
        from gpubed.backends.virtualwall import census

        census.remove(thing)

    def data_within(self, cluster: str) -> list[Existing]:
        """Return the cluster's part of the folder that the testbed mounts on its nodes."""
        from gpubed.backends.virtualwall import shared

        return shared.existing(cluster)

    def remove_data(self, cluster: str) -> list[Existing]:
        """Remove that part, through a node."""
        from gpubed.backends.virtualwall import shared

        return shared.remove(cluster)

    def lease(self, spec: ClusterSpec, allocation: Allocation) -> Lease:
        """Ask when the first of slice and slivers ends."""
        from gpubed.backends.virtualwall import census, leases

        there, urn = census.slice_of(allocation)
        return Lease(leases.granted(there, urn))

    def renew(self, spec: ClusterSpec, allocation: Allocation, until: datetime) -> Lease:
        """Renew the slice, then its slivers."""
        from gpubed.backends.virtualwall import census, leases

        there, urn = census.slice_of(allocation)
        return Lease(leases.renew(there, urn, until))

    def resources(self, spec: ClusterSpec) -> list[Offer]:
        """Count machines by hardware type; types with GPUs come first."""
        from gpubed.backends.virtualwall import supply

        return supply.offers(spec)

    def fits(self, plan: ClusterPlan) -> list[str]:
        """Compare the plan with what is free now."""
        from gpubed.backends.virtualwall import supply

        return supply.shortages(plan)

    def refusals(self, plan: ClusterPlan) -> list[Finding]:
        """Refuse another project, since a slice cannot move, and machines that there are not."""
        from gpubed.backends.virtualwall import limits, supply

        return limits.refusals(plan) or supply.refusals(plan)

    def export(self, plan: ClusterPlan, kind: str) -> str:
        """Return the request, or a jFed experiment specification."""
        from gpubed.backends.virtualwall import espec, rspec

        if kind == "rspec":
            return rspec.without(rspec.request(plan), ())
        if kind == "espec":
            return espec.specification(plan)
        raise UsageError(f"the testbed has no {kind}", "espec or rspec")


def create() -> VirtualWallBackend:
    """Make the backend; the registry calls this."""
    return VirtualWallBackend()

"""A testbed of the Virtual Wall's kind, as who asks for a cluster's slice sees it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from gpubed.testbeds.base import Existing, Finding, Identity, Lease, Offer, Testbed
from gpubed.testbeds.driver import Driver

# TLS, XML and SSH libraries are slow to import, and most verbs need none of them.
if TYPE_CHECKING:
    from datetime import datetime

    from gpubed.backends.virtualwall.config import Config
    from gpubed.nodes.allocation import Allocation, Node
    from gpubed.spec.clusterspec import ClusterSpec
    from gpubed.spec.plan import ClusterPlan


class VirtualWallTestbed(Testbed):
    """An aggregate manager, and the authorities that know the user there."""

    @cached_property
    def _config(self) -> Config:
        """How the testbed is reached.

        Found once: the journal that may tell it goes with the slice, and then `down` looks
        whether anything is left.
        """
        from gpubed.backends.virtualwall import connection

        return connection.config_of(self.reach, self.paths)

    def doctor(self, spec: ClusterSpec) -> list[Finding]:
        """Look at login, servers, project and bastion."""
        from gpubed.backends.virtualwall import doctor

        return doctor.findings(spec)

    def driver(self, kind: str) -> Driver:
        """Return the driver of a slice or node."""
        from gpubed.backends.virtualwall.node import NodeDriver
        from gpubed.backends.virtualwall.slice import SliceDriver

        drivers = {"slice": SliceDriver, "node": NodeDriver}
        return drivers[kind](self.paths) if kind in drivers else super().driver(kind)

    def describe(self, allocation: Allocation) -> dict[str, str]:
        """Return the state of each node, as the aggregate tells it."""
        from gpubed.backends.virtualwall import census

        return census.describe(self.paths, self._config, allocation)

    def restart(self, allocation: Allocation, node: Node) -> None:
        """Have the aggregate restart a node (geni_restart), and wait until it has booted."""
        from gpubed.backends.virtualwall import census

        census.restart(self.paths, self._config, allocation, node)

    def identity(self) -> Identity:
        """Return at which aggregate, and of which project of which authority, slices are."""
        config = self._config
        authority = urlsplit(config.authority.slices).hostname or ""
        called = f"project {config.project} of {authority} at {config.aggregate.urn}"
        id_ = f"{config.aggregate.urn} {authority} {config.project}"
        return Identity(self.backend.spelled(id_), called)

    def existing(self) -> list[Existing]:
        """Return the slices of the cluster's name that hold nodes."""
        from gpubed.backends.virtualwall import census

        return census.existing(self.paths, self._config)

    def remove(self, thing: Existing) -> None:
        """Give a slice's nodes back."""
        from gpubed.backends.virtualwall import census

        census.remove(self.paths, self._config, thing)

    def data_within(self) -> list[Existing]:
        """Return the cluster's part of the folder that the testbed mounts on its nodes."""
        from gpubed.backends.virtualwall import shared

        return shared.existing(self.paths, self.reach.wanted)

    def remove_data(self) -> list[Existing]:
        """Remove that part, through a node."""
        from gpubed.backends.virtualwall import shared

        return shared.remove(self.paths, self.reach.wanted)

    def lease(self, allocation: Allocation) -> Lease:
        """Ask when the first of slice and slivers ends."""
        from gpubed.backends.virtualwall import census, leases

        there, urn = census.slice_of(self.paths, self._config, allocation.uuid)
        return Lease(leases.granted(there, urn))

    def renew(self, allocation: Allocation, until: datetime) -> Lease:
        """Renew the slice, then its slivers."""
        from gpubed.backends.virtualwall import census, leases

        there, urn = census.slice_of(self.paths, self._config, allocation.uuid)
        return Lease(leases.renew(there, urn, until))

    def resources(self, spec: ClusterSpec) -> list[Offer]:
        """Count machines by hardware type; types with GPUs come first."""
        from gpubed.backends.virtualwall import supply

        return supply.offers(spec)

    def fits(self, plan: ClusterPlan) -> list[Finding]:
        """Compare the plan with what is free now."""
        from gpubed.backends.virtualwall import supply

        return supply.refusals(plan, self.paths)

    def refusals(self, plan: ClusterPlan) -> list[Finding]:
        """Refuse another project, since a slice cannot move, and machines that there are not."""
        from gpubed.backends.virtualwall import limits, supply

        return limits.refusals(plan, self.paths) or supply.refusals(plan, self.paths)

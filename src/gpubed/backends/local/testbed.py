"""What a cluster has on this machine."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from gpubed.core.errors import GpubedError
from gpubed.testbeds.base import Existing, Finding, Identity, Testbed

# Docker's library is slow to import, and most verbs need it not.
if TYPE_CHECKING:
    from gpubed.nodes.allocation import Allocation
    from gpubed.spec.clusterspec import ClusterSpec
    from gpubed.spec.plan import ClusterPlan


class LocalTestbed(Testbed):
    """The Docker daemon of this machine."""

    def doctor(self, spec: ClusterSpec) -> list[Finding]:
        """Look at Docker, disk, memory, kernel and addresses."""
        from gpubed.backends.local import doctor

        return doctor.findings(spec, self.paths)

    def describe(self, allocation: Allocation) -> dict[str, str]:
        """Return the state of each node."""
        from gpubed.backends.local import census

        return census.describe(allocation)

    def identity(self) -> Identity:
        """Return which Docker daemon answers."""
        from gpubed.backends.local import daemon

        return daemon.identity()

    def existing(self) -> list[Existing]:
        """Return what Docker has under the cluster's name."""
        from gpubed.backends.local import census

        return census.existing(self.paths.name)

    def remove(self, thing: Existing) -> None:
        """Remove a container, network or volume."""
        from gpubed.backends.local import census

        census.remove(thing)

    def fits(self, plan: ClusterPlan) -> list[Finding]:
        """Return what this machine has not for the cluster: addresses, memory.

        Nothing of what Docker cannot be asked for.
        """
        from gpubed.backends.local import doctor

        with suppress(GpubedError):
            room = doctor.memory(plan, self.paths)
            return [*self.refusals(plan), *([] if room.ok else [room])]
        return []

    def refusals(self, plan: ClusterPlan) -> list[Finding]:
        """Return which networks of the cluster others have already."""
        from gpubed.backends.local import addresses

        return [finding for finding in addresses.subnets(plan, self.paths) if not finding.ok]

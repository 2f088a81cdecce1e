"""A cloud as who owns a cluster sees it."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from gpubed.core import record
from gpubed.testbeds.base import Existing, Fault, Finding, Identity, Offer, Testbed
from gpubed.testbeds.driver import Driver

# OpenStack's library is slow to import, and most verbs need it not.
if TYPE_CHECKING:
    from openstack.connection import Connection

    from gpubed.core.errors import GpubedError
    from gpubed.nodes.allocation import Allocation, Node
    from gpubed.spec.clusterspec import ClusterSpec
    from gpubed.spec.plan import ClusterPlan


class OpenStackTestbed(Testbed):
    """The project and region that a cluster's specification leads to."""

    @cached_property
    def _connection(self) -> Connection:
        """The way to the cloud, as the last specification to name one says."""
        from gpubed.backends.openstack import cloud

        return cloud.of(self.reach.specification.backend)

    @property
    def _uuid(self) -> str | None:
        """What tells the cluster's servers from those of another one of its name.

        None where nothing was made yet; a run that makes the first ones keeps it before them.
        """
        return record.uuid(self.paths)

    def doctor(self, spec: ClusterSpec) -> list[Finding]:
        """Look at tools, credentials, quota, flavors, images and networks."""
        from gpubed.backends.openstack import doctor, limits

        return doctor.findings(spec, self.paths, limits.applied(self.reach))

    def plugin_environment(self) -> dict[str, str]:
        """Return which clouds.yaml and entry are meant, and which OS_* variables are not."""
        from gpubed.backends.openstack import clouds_file

        return clouds_file.variables(lambda: self._connection)

    def driver(self, kind: str) -> Driver:
        """Return the driver of a host key, or of a look at the cloud."""
        from gpubed.backends.openstack.host_key import HostKeyDriver

        return HostKeyDriver(self.paths) if kind == "hostkey" else super().driver(kind)

    def describe(self, allocation: Allocation) -> dict[str, str]:
        """Return the state of each node."""
        from gpubed.backends.openstack import census

        return census.describe(self._connection, allocation)

    def restart(self, allocation: Allocation, node: Node) -> None:
        """Have Nova reboot a server as its power switch does (a hard reboot)."""
        from gpubed.backends.openstack import census

        census.restart(self._connection, allocation, node)

    def identity(self) -> Identity | None:
        """Return which project and region answer: credentials of others lead elsewhere."""
        from gpubed.backends.openstack import cloud

        return cloud.identity(self._connection)

    def unrefreshable(self) -> GpubedError | None:
        """Name a server in a state in which the plugin reads none."""
        from gpubed.backends.openstack import census

        return census.unrefreshable(self._connection, self.paths.name, self._uuid)

    def faults(self) -> list[Fault]:
        """Return the servers that never started, with Nova's reason."""
        from gpubed.backends.openstack import census

        return census.faults(self._connection, self.paths.name, self._uuid)

    def existing(self) -> list[Existing]:
        """Return what the cloud has under the cluster's name."""
        from gpubed.backends.openstack import census

        return census.existing(self._connection, self.paths.name)

    def remove(self, thing: Existing) -> None:
        """Remove something of a cluster from the cloud."""
        from gpubed.backends.openstack import census

        census.remove(self._connection, thing)

    def resources(self, spec: ClusterSpec) -> list[Offer]:
        """Return the flavors, and how many servers of each the quota still has room for."""
        from gpubed.backends.openstack import offers

        return offers.offers(spec)

    def fits(self, plan: ClusterPlan) -> list[Finding]:
        """Return why the cloud cannot give the cluster now."""
        return self.refusals(plan)

    def refusals(self, plan: ClusterPlan) -> list[Finding]:
        """Return what the cloud lacks: quota, flavors, images, networks, addresses."""
        from gpubed.backends.openstack import limits, offers
        from gpubed.backends.openstack.needs import Needs

        before = limits.applied(self.reach)
        shrunk = limits.shrunk(before, Needs.of(plan)) if before else []
        return [
            *limits.moved(plan, self.paths),
            *shrunk,
            *offers.obstacles(plan, self._uuid, before),
        ]

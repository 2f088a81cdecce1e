"""The OpenStack backend: nodes as servers of a cloud."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpubed.backends.openstack import labels
from gpubed.spec.clusterspec import Problem
from gpubed.testbeds.base import Backend, Driver, Existing, Fault, Finding, Identity, Offer

# OpenStack's and Pulumi's libraries are slow to import, and most verbs need neither.
if TYPE_CHECKING:
    import pulumi

    from gpubed.core.errors import GpubedError
    from gpubed.nodes.allocation import Allocation
    from gpubed.spec.clusterspec import ClusterSpec
    from gpubed.spec.plan import ClusterPlan


class OpenStackBackend(Backend):
    """Nodes as servers of an OpenStack cloud."""

    name = "openstack"
    engine_required = "cli"
    exchanges_keys = False
    boots_later = True
    # An image of some GB is copied to each host at first, and to a volume where one is booted.
    boots_within_s = 900.0
    the_way_back = "put OS_CLOUD and other OS_*, or `cloud` and `region` of cluster.yml, back"
    native = frozenset(labels.TYPES.values())

    def check(self, spec: ClusterSpec) -> list[Problem]:
        """Refuse what a cloud cannot do."""
        from gpubed.backends.openstack import limits

        return limits.problems(spec)

    def shapes_links(self, spec: ClusterSpec) -> bool:
        """Links are held to their rate by the cloud's network, unless the owner wants no QoS."""
        from gpubed.backends.openstack.config import Config

        return isinstance(spec.backend, Config) and spec.backend.shaping == "qos"

    def doctor(self, spec: ClusterSpec | None) -> list[Finding]:
        """Look at tools, credentials, quota, flavors, images and networks."""
        from gpubed.backends.openstack import doctor

        return doctor.findings(spec)

    def load(self) -> None:
        """Import openstacksdk, whose modules import each other."""
        from gpubed.backends.openstack import cloud, lookups  # noqa: F401

    def plugin_environment(self, cluster: str) -> dict[str, str]:
        """Return which clouds.yaml and entry are meant, and which OS_* variables are not."""
        from gpubed.backends.openstack import clouds_file

        return clouds_file.variables(cluster)

    def repair(self, say: Callable[[str], None]) -> None:
        """Install Pulumi's plugin for OpenStack."""
        from gpubed.backends.openstack import doctor

        doctor.install_plugin(say)

    def component(
        self, plan: ClusterPlan, uuid: pulumi.Output[str], public_key: pulumi.Output[str]
    ) -> pulumi.Output[dict[str, Any]]:
        """Declare networks, security groups, servers and the floating address."""
        from gpubed.backends.openstack.component import Cluster

        return Cluster(plan, uuid, public_key).allocation

    def driver(self, kind: str) -> Driver:
        """Return the driver of a look at the cloud, or of a host key."""
        from gpubed.backends.openstack import lookups
        from gpubed.backends.openstack.host_key import HostKeyDriver

        drivers: dict[str, type[Driver]] = {
            "capacity": lookups.CapacityDriver,
            "image": lookups.ImageDriver,
            "network": lookups.ExternalNetworkDriver,
            "hostkey": HostKeyDriver,
        }
        return drivers[kind]() if kind in drivers else super().driver(kind)

    def describe(self, allocation: Allocation) -> dict[str, str]:
        """Return the state of each node."""
        from gpubed.backends.openstack import census

        return census.describe(allocation)

    def identity(self, cluster: str) -> Identity | None:
        """Return which project and region answer: credentials of others lead elsewhere."""
        from gpubed.backends.openstack import cloud

        return cloud.identity(cluster)

    def unrefreshable(self, cluster: str) -> GpubedError | None:
        """Name a server in a state in which the plugin reads none."""
        from gpubed.backends.openstack import census

        return census.unrefreshable(cluster)

    def explained(self, error: GpubedError) -> GpubedError | None:
        """Say which option a refusal of the cloud is about."""
        from gpubed.backends.openstack import refusals

        return refusals.explained(error)

    def faults(self, cluster: str) -> list[Fault]:
        """Return the servers that never started, with Nova's reason."""
        from gpubed.backends.openstack import census

        return census.faults(cluster)

    def existing(self, cluster: str) -> list[Existing]:
        """Return what the cloud has under a cluster's name."""
        from gpubed.backends.openstack import census

        return census.existing(cluster)

    def remove(self, thing: Existing) -> None:
        """Remove something of a cluster from the cloud."""
        from gpubed.backends.openstack import census

        census.remove(thing)

    def resources(self, spec: ClusterSpec) -> list[Offer]:
        """Return the flavors, and how many servers of each the quota still has room for."""
        from gpubed.backends.openstack import offers

        return offers.offers(spec)

    def fits(self, plan: ClusterPlan) -> list[str]:
        """Return why the cloud cannot give the cluster now."""
        return [finding.message for finding in self.refusals(plan)]

    def refusals(self, plan: ClusterPlan) -> list[Finding]:
        """Return what the cloud lacks: quota, flavors, images, networks, addresses."""
        from gpubed.backends.openstack import limits, offers
        from gpubed.backends.openstack.needs import Needs

        before = limits.applied(plan)
        shrunk = limits.shrunk(before, Needs.of(plan)) if before else []
        return [*limits.moved(plan), *shrunk, *offers.obstacles(plan, before)]


def create() -> OpenStackBackend:
    """Make the backend; the registry calls this."""
    return OpenStackBackend()

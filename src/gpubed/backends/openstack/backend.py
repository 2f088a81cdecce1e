"""The OpenStack backend: nodes as servers of a cloud."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpubed.backends.openstack import labels
from gpubed.spec.clusterspec import Problem
from gpubed.testbeds.base import Backend
from gpubed.testbeds.driver import Driver

# OpenStack's and Pulumi's libraries are slow to import, and most verbs need neither.
if TYPE_CHECKING:
    import pulumi

    from gpubed.backends.openstack.testbed import OpenStackTestbed
    from gpubed.core.errors import GpubedError
    from gpubed.core.paths import ClusterPaths
    from gpubed.spec.clusterspec import ClusterSpec
    from gpubed.spec.plan import ClusterPlan
    from gpubed.testbeds.reach import Reach


class OpenStackBackend(Backend):
    """Nodes as servers of an OpenStack cloud."""

    name = "openstack"
    engine_required = "cli"
    exchanges_keys = False
    boots_later = True
    # An image of some GB is copied to each host at first, and to a volume where one is booted.
    boots_within_s = 900.0
    restarts = True
    the_way_back = "put OS_CLOUD and other OS_*, or `cloud` and `region` of cluster.yml, back"
    native = frozenset(labels.TYPES.values())

    def bind(self, reach: Reach, paths: ClusterPaths) -> OpenStackTestbed:
        """Return the cloud as who owns a cluster sees it."""
        from gpubed.backends.openstack.testbed import OpenStackTestbed

        return OpenStackTestbed(self, reach, paths)

    def check(self, spec: ClusterSpec) -> list[Problem]:
        """Refuse what a cloud cannot do."""
        from gpubed.backends.openstack import limits

        return limits.problems(spec)

    def shapes_links(self, spec: ClusterSpec) -> bool:
        """Links are held to their rate by the cloud's network, unless the owner wants no QoS."""
        from gpubed.backends.openstack.config import Config

        return isinstance(spec.backend, Config) and spec.backend.shaping == "qos"

    def load(self) -> None:
        """Import openstacksdk, whose modules import each other."""
        from gpubed.backends.openstack import cloud, lookups  # noqa: F401

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
        """Return the driver of a look at the cloud."""
        from gpubed.backends.openstack import lookups

        drivers: dict[str, type[Driver]] = {
            "capacity": lookups.CapacityDriver,
            "image": lookups.ImageDriver,
            "network": lookups.ExternalNetworkDriver,
        }
        return drivers[kind]() if kind in drivers else super().driver(kind)

    def explained(self, error: GpubedError) -> GpubedError | None:
        """Say which option a refusal of the cloud is about."""
        from gpubed.backends.openstack import refusals

        return refusals.explained(error)


def create() -> OpenStackBackend:
    """Make the backend; the registry calls this."""
    return OpenStackBackend()

"""The static backend: hosts of one's own."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from gpubed.core.errors import PrerequisiteMissing
from gpubed.spec.clusterspec import Problem
from gpubed.testbeds.base import Backend

# Pulumi's and paramiko's libraries are slow to import, and most verbs need neither.
if TYPE_CHECKING:
    import pulumi

    from gpubed.backends.static.testbed import StaticTestbed
    from gpubed.core.paths import ClusterPaths
    from gpubed.spec.clusterspec import ClusterSpec
    from gpubed.spec.plan import ClusterPlan, NodePlan
    from gpubed.testbeds.reach import Reach


class StaticBackend(Backend):
    """Hosts that somebody else installed; they are never rebooted or wiped unasked."""

    name = "static"
    lists_nodes = True

    def bind(self, reach: Reach, paths: ClusterPaths) -> StaticTestbed:
        """Return the hosts of a cluster."""
        from gpubed.backends.static.testbed import StaticTestbed

        return StaticTestbed(self, reach, paths)

    def check(self, spec: ClusterSpec) -> list[Problem]:
        """Find groups without hosts, and hosts that cannot be on the experiment network."""
        from gpubed.backends.static import limits

        return limits.problems(spec)

    def component(
        self, plan: ClusterPlan, uuid: pulumi.Output[str], public_key: pulumi.Output[str]
    ) -> pulumi.Output[dict[str, Any]]:
        """Declare one node for each host."""
        from gpubed.backends.static.component import Cluster

        return Cluster(plan, uuid, public_key).allocation

    def foretold(self, plan: ClusterPlan, node: NodePlan) -> dict[str, Any]:
        """Return the way to the host: it changes in place."""
        from gpubed.backends.static import access, named

        config = named.options(plan.spec)
        host = config.hosts[node.group][node.index]
        address = host.experiment_address
        found: dict[str, Any] = {
            "experiment_address": str(address) if address else None,
            "port": host.port,
            "user": config.user,
        }
        with suppress(PrerequisiteMissing):  # `doctor` and `up` name the key that is not known yet
            found["via"] = [hop.model_dump() for hop in access.hops(config)]
        return found


def create() -> StaticBackend:
    """Make the backend; the registry calls this."""
    return StaticBackend()

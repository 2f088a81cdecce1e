"""Finds damage to a cluster, and the roles that must be applied again to repair it."""

from __future__ import annotations

from gpubed.access import services
from gpubed.cluster import condition
from gpubed.cluster.condition import Condition
from gpubed.configuration import applied, roles
from gpubed.configuration.due import Due
from gpubed.core import secret
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.nodes import allocation as allocations
from gpubed.nodes.cluster import Cluster
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds import registry

# The role of each service.
_ROLES = {"jupyterlab": "jupyterlab", services.STATUS: "monitoring"}


Seen = tuple[Cluster, Condition]


def look(paths: ClusterPaths, plan: ClusterPlan) -> Seen | None:
    """Look at the present nodes before `up`; None if there are none or they cannot be read.

    They are looked at on their own testbed, even if the specification names another one by now.
    """
    try:
        if not secret.public_key(paths.private_key):
            return None  # no login without the key, which is exchanged like a changed one
        allocation = allocations.load(paths.allocation)
    except GpubedError:
        return None  # an unreadable file is written again
    testbed = registry.bound(allocation.backend, paths)
    cluster = Cluster(paths, plan, allocation)
    return cluster, condition.look(testbed, cluster, before_roles=True)


def damaged(seen: Seen | None) -> Seen | None:
    """Return the result of a look if the cluster is not ready, else None."""
    return seen if seen and seen[1].state != "ready" else None


def prepare_repair(cluster: Cluster, found: Condition) -> None:
    """Mark damaged nodes as not configured and the cluster as not verified.

    Call this only once the costs of the repair are approved.
    """
    # Before the verification is removed, which shows that roles were applied.
    lost, stopped = unconfigured(found), unserved(cluster.plan, found)
    applied.forget(cluster.paths, cluster.allocation, lost, stopped)
    cluster.paths.verification.unlink(missing_ok=True)


def unconfigured(found: Condition) -> list[str]:
    """Return the nodes that must be configured from scratch."""
    return in_state(found, "cut", "unshaped")


def in_state(found: Condition, *states: str) -> list[str]:
    """Return the nodes that are in one of these states."""
    return [name for name, state in found.nodes.items() if state in states]


def unserved(plan: ClusterPlan, found: Condition) -> Due:
    """Return the nodes on which roles' services do not work, by role."""
    unserved = {_ROLES[name]: list(found.nodes) for name in found.broken}
    for one in found.stopped:
        unserved.setdefault(one.role, []).append(one.node)
    if roles.ENVIRONMENT in unserved:  # packages installed into it may be lost with it
        for role in roles.active(plan):
            if "environment" in roles.reads(plan, role):
                unserved[role] = list(found.nodes)
    return unserved

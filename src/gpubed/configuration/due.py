"""Determines which roles are due on which nodes, for `up` to apply and `plan` to show."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from gpubed.backends.component import allocation
from gpubed.configuration import applied, roles
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Allocation, Cluster
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds import registry

Due = dict[str, list[str]]
"""The nodes on which a role is to be applied, by role; both in their order."""


def document(due: Due) -> list[dict[str, Any]]:
    """Return due roles as JSON documents and events have them."""
    return [{"name": role, "nodes": nodes} for role, nodes in due.items()]


def now(cluster: Cluster) -> Due:
    """Return the roles that nodes lack in the present version."""
    return _ordered(cluster, _missing(cluster))


def foreseen(
    paths: ClusterPaths,
    plan: ClusterPlan,
    present: Allocation | None,
    *,
    anew: Collection[str],
    strange: Collection[str] = (),
    cut: Collection[str] = (),
    broken: Mapping[str, Collection[str]] | None = None,
) -> Due:
    """Return the roles that will be due after the planned changes on the testbed.

    Args:
        present: The present allocation, if any.
        anew: Nodes that will be created, or created again.
        strange: Nodes whose other host keys will be accepted.
        cut: Nodes whose configuration was interrupted: all roles are due.
        broken: Nodes on which services of a role do not run, by role.
    """
    broken = broken or {}
    expected = _expected(plan, present, anew, strange)
    later = Cluster(paths, plan, expected)
    missing = _missing(later)
    stale = {}
    for role in roles.active(plan):
        names = {*broken.get(role, ()), *cut, *missing.get(role, ())}
        stale[role] = [node.name for node in expected.nodes if node.name in names]
    return _ordered(later, stale)


def _missing(cluster: Cluster) -> Due:
    fingerprints = roles.fingerprints(cluster.plan, cluster.allocation, cluster.paths.inventory)
    return applied.missing(cluster.paths, cluster.allocation, fingerprints)


def _ordered(cluster: Cluster, missing: Due) -> Due:
    """Sort due roles by order of application; a role that reads all nodes is due on all of them."""
    everywhere = [node.name for node in cluster.allocation.nodes]
    return {
        role: everywhere if "nodes" in roles.reads(cluster.plan, role) else missing[role]
        for role in roles.active(cluster.plan)
        if missing.get(role)
    }


def _expected(
    plan: ClusterPlan, present: Allocation | None, anew: Collection[str], strange: Collection[str]
) -> Allocation:
    """Return the expected allocation; nodes to create have no id, and so no applied roles."""
    backend, results, kept = registry.backend(plan.backend), [], dict[str, dict[str, Any]]()
    if present:
        kept = {node.name: node.model_dump() for node in present.nodes}
        kept |= {failure.node: {"failed": failure.reason} for failure in present.failed}
    for node in plan.nodes:
        result = {"id": "", "control_address": str(node.control_address), "host_keys": []}
        if node.name not in anew:
            result = kept.get(node.name, result)
        if node.name in strange:
            result = {**result, "host_keys": []}  # unknown until they are accepted
        results.append({**result, **backend.foretold(plan, node)})
    uuid, one_host = (present.uuid, present.one_host) if present else ("", False)
    return Allocation.model_validate(allocation(plan, uuid, results, one_host=one_host))

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
    """Return due roles in the form of documents and events."""
    return [{"name": role, "nodes": nodes} for role, nodes in due.items()]


def now(cluster: Cluster) -> Due:
    """Return the roles that are missing on nodes in the wanted version."""
    return _together(cluster, _missing(cluster))


def foreseen(
    paths: ClusterPaths,
    plan: ClusterPlan,
    known: Allocation | None,
    *,
    anew: Collection[str],
    strange: Collection[str] = (),
    cut: Collection[str] = (),
    broken: Mapping[str, Collection[str]] | None = None,
) -> Due:
    """Return the roles that will be due once the testbed has done what is planned.

    Nodes `anew` will be made, or made again; other host keys of `strange` nodes will be accepted;
    `cut` nodes count as not configured, as do a `broken` role's services on its nodes.
    """
    broken = broken or {}
    expected = _expected(plan, known, anew, strange)
    later = Cluster(paths, plan, expected)
    missing = _missing(later)
    lacking = {
        role: {*broken.get(role, ()), *cut, *missing.get(role, ())} for role in roles.active(plan)
    }
    stale = {
        role: [node.name for node in expected.nodes if node.name in names]
        for role, names in lacking.items()
    }
    return _together(later, stale)


def _missing(cluster: Cluster) -> Due:
    wanted = roles.fingerprints(cluster.plan, cluster.allocation, cluster.paths.inventory)
    return applied.missing(cluster.paths, cluster.allocation, wanted)


def _together(cluster: Cluster, missing: Due) -> Due:
    """Sort due roles by order of application; roles that read all nodes are due on all of them."""
    everywhere = [node.name for node in cluster.allocation.nodes]
    return {
        role: everywhere if "nodes" in roles.reads(cluster.plan, role) else missing[role]
        for role in roles.active(cluster.plan)
        if missing.get(role)
    }


def _expected(
    plan: ClusterPlan, known: Allocation | None, anew: Collection[str], strange: Collection[str]
) -> Allocation:
    """Return the expected allocation; a node that is yet to be made has no id, hence no record."""
    there = {node.name: node.model_dump() for node in known.nodes} if known else {}
    failed = {failure.node: {"failed": failure.reason} for failure in known.failed} if known else {}
    backend, results = registry.backend(plan.backend), []
    made_anew, unknown = frozenset(anew), frozenset(strange)
    kept = {name: was for name, was in {**there, **failed}.items() if name not in made_anew}
    for node in plan.nodes:
        made = {"id": "", "control_address": str(node.control_address), "host_keys": []}
        result = kept.get(node.name, made)
        if node.name in unknown:
            result = {**result, "host_keys": []}  # others than those that we know
        results.append({**result, **backend.foretold(plan, node)})
    uuid, one_host = (known.uuid, known.one_host) if known else ("", False)
    return Allocation.model_validate(allocation(plan, uuid, results, one_host=one_host))

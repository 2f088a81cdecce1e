"""`gpubed status`: the condition of a cluster."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from gpubed.access import services
from gpubed.cluster import idle, probe
from gpubed.cluster import lease as leases
from gpubed.cluster.probe import Condition
from gpubed.configuration import applied, jupyterlab_port, unfinished
from gpubed.core import progress, record, runlock, secret
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.core.reading import Unreadable
from gpubed.engines.stack import EngineName, Stack
from gpubed.hardware import facts as hardware
from gpubed.hardware.facts import Facts
from gpubed.nodes.allocation import Cluster, Node
from gpubed.nodes.verification import Verification
from gpubed.testbeds import registry
from gpubed.testbeds.base import JobTestbed
from gpubed.testbeds.specification import load_current

_HERE = {"Identity", "Key", "Image"}  # resources on the controller


def status(
    paths: ClusterPaths, engine: EngineName, *, use: bool = False, seen: Condition | None = None
) -> dict[str, Any]:
    """Return the document of `status`: nodes and their hardware, lease, services, verification.

    Raises `NotUp` if the cluster has no nodes; see `of_none`.

    Args:
        use: Whether to ask nodes what they are used for; `use` is null if they do not tell.
        seen: The cluster's condition, if it was just looked at.
    """
    cluster = load_current(paths, lambda said: progress.note(f"{said}; {record.put_back(paths)}"))
    allocation = cluster.allocation
    testbed = registry.bound(allocation.backend, paths)
    now = seen or probe.look(testbed, cluster)
    unwell = _unwell(now)
    unreadable = _unreadable(cluster, engine)
    found = hardware.of_cluster(paths.facts, allocation)
    # If `up` configures nothing, it would not finish an interrupted `configure`.
    goes_on = cluster.plan.spec.configure or record.read(paths).unfinished == "nodes"
    begun = unfinished.state(paths) if goes_on else ""
    asked = dict[str, Any]()
    if use:
        held = {n: one["reason"] for n, one in unwell.items() if one["state"] == "quarantined"}
        used = idle.look(cluster, held)
        asked["use"] = used and used.document()
    if isinstance(testbed, JobTestbed):
        asked["jobs"] = [asdict(job) for job in testbed.jobs(allocation.uuid)]
    lease = current_lease(cluster, now)
    ends_soon = lease.state(leases.renewal_margin(cluster.plan.spec.lease)) in ("expiring", "expired")
    holder, verified = runlock.holder(paths.state), _verified(paths)
    configured = applied.digest(paths, allocation)
    return {
        "engine": engine,
        "state": begun or ("degraded" if unwell or unreadable else now.state),
        "unreadable": unreadable,
        "held_by": holder and holder.model_dump(),
        "configured": cluster.plan.spec.configure,
        "nodes": [
            {
                **_node_row(node, now.nodes[node.name], found.get(node.name)),
                **unwell.get(node.name, {}),
            }
            for node in allocation.nodes
        ],
        "failed": [failure.model_dump() for failure in allocation.failed],
        "lease": {**lease.document(), "ends_soon": ends_soon},
        "services": [
            {**one, "reason": now.services.get(one["name"], "")}
            for one in (services.urls(cluster) if cluster.plan.spec.configure else ())
        ],
        "pending": jupyterlab_port.pending(cluster),
        "stopped": [asdict(one) for one in now.stopped],
        "reshaped": now.reshaped,
        **asked,
        "verification": verified
        and {**verified.summary(), "current": verified.is_of(allocation, configured)},
    }


def of_none(paths: ClusterPaths, engine: EngineName) -> dict[str, Any]:
    """Return the document of `status` for a cluster without nodes: absent, or partly made."""
    there = False  # whether the state names, or may have begun, a resource on the testbed
    if paths.project.pulumi.exists():
        stack = Stack(paths, engine)
        recorded = stack.export().get("deployment", {}).get("resources") or ()
        made = {one["type"].rpartition(":")[2] for one in recorded if one.get("custom")}
        there = bool(made - _HERE) or stack.interrupted()
    return {
        "engine": engine,
        "state": unfinished.state(paths) or ("allocated" if there else "absent"),
        "nodes": [],
        "lease": leases.Record().document(),
        "services": [],
        "verification": None,
    }


def _verified(paths: ClusterPaths) -> Verification | None:
    try:
        return Verification.last(paths.verification)
    except Unreadable as error:
        progress.note(f"{error.message}: it counts as none, {error.hint}")
        return None


def _unreadable(cluster: Cluster, engine: EngineName) -> list[dict[str, str]]:
    found = list[GpubedError]()
    try:
        if cluster.allocation.nodes:
            secret.require_key(cluster.paths)
    except Unreadable:
        pass  # an unreadable key is not lost
    except GpubedError as error:
        found.append(error)
    try:
        if cluster.paths.project.pulumi.exists():
            Stack(cluster.paths, engine).export()
    except GpubedError as error:
        found.append(error)
    return [{"message": error.message, "hint": error.hint or ""} for error in found]


def _unwell(now: Condition) -> dict[str, dict[str, str]]:
    said = {name: {"state": probe.FULL, "reason": why} for name, why in now.full.items()}
    for found in now.unwell:
        if now.nodes[found.node] == "ready":
            reasons = [found.reason, *([now.full[found.node]] if found.node in now.full else [])]
            said[found.node] = {"state": found.state, "reason": "; ".join(reasons)}
    return said


def _node_row(node: Node, state: str, found: Facts | None) -> dict[str, Any]:
    return {
        "name": node.name,
        "id": node.id,
        "state": state,
        "reason": "",
        "role": node.role,
        "control_address": node.control_address,
        "experiment_address": node.experiment_address,
        "gpus": node.gpus,
        "hardware": found and found.summary(),
    }


def current_lease(cluster: Cluster, now: Condition | None) -> leases.Record:
    """Return the lease; empty if the nodes were taken back before its end."""
    try:
        known = leases.read(cluster)
    except GpubedError as error:
        progress.note(f"the lease is what was known before: {error.message}")
        known = leases.last_known(cluster.paths)
    gone = now is not None and set(now.nodes.values()) == {"missing"}
    return leases.Record() if gone and known.state(0) != "expired" else known

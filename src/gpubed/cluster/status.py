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
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.verification import Verification
from gpubed.testbeds import registry
from gpubed.testbeds.base import JobTestbed
from gpubed.testbeds.specification import load_current

_HERE = {"Identity", "Key", "Image"}  # resources on the controller


def status(
    paths: ClusterPaths,
    engine: EngineName,
    *,
    use: bool = False,
    condition: Condition | None = None,
) -> dict[str, Any]:
    """Return the document of `status`: nodes and their hardware, lease, services, verification.

    Raises `NotUp` if the cluster has no nodes; see `of_none`.

    Args:
        use: Whether to ask nodes about their use; `use` is null if they do not report it.
        condition: The condition, if it was just probed.
    """
    cluster = load_current(paths, lambda why: progress.note(f"{why}; {record.put_back(paths)}"))
    allocation = cluster.allocation
    testbed = registry.bound(allocation.backend, paths)
    now = condition or probe.look(testbed, cluster)
    unwell = _unwell(now)
    unreadable = _unreadable(cluster, engine)
    facts = hardware.of_cluster(paths.facts, allocation)
    # With `configure: false`, `up` would not finish an interrupted `configure`.
    finishes = cluster.plan.spec.configure or record.read(paths).unfinished == "nodes"
    begun = unfinished.state(paths) if finishes else ""
    optional = dict[str, Any]()
    if use:
        held = {n: row["reason"] for n, row in unwell.items() if row["state"] == "quarantined"}
        used = idle.look(cluster, held)
        optional["use"] = used and used.document()
    if isinstance(testbed, JobTestbed):
        optional["jobs"] = [asdict(job) for job in testbed.jobs(allocation.uuid)]
    lease = current_lease(cluster, now)
    margin = leases.renewal_margin(cluster.plan.spec.lease)
    ends_soon = lease.state(margin) in ("expiring", "expired")
    holder, verified = runlock.holder(paths.state), None
    try:
        verified = Verification.last(paths.verification)
    except Unreadable as error:
        progress.note(f"{error.message}: it counts as none, {error.hint}")
    configured = applied.digest(paths, allocation)
    return {
        "engine": engine,
        "state": begun or ("degraded" if unwell or unreadable else now.state),
        "unreadable": unreadable,
        "held_by": holder and holder.model_dump(),
        "configured": cluster.plan.spec.configure,
        "nodes": [
            {
                "name": node.name,
                "id": node.id,
                "state": now.nodes[node.name],
                "reason": "",
                "role": node.role,
                "control_address": node.control_address,
                "experiment_address": node.experiment_address,
                "gpus": node.gpus,
                "hardware": facts[node.name].summary() if node.name in facts else None,
                **unwell.get(node.name, {}),
            }
            for node in allocation.nodes
        ],
        "failed": [failure.model_dump() for failure in allocation.failed],
        "lease": {**lease.document(), "ends_soon": ends_soon},
        "services": [
            {**service, "reason": now.services.get(service["name"], "")}
            for service in (services.urls(cluster) if cluster.plan.spec.configure else ())
        ],
        "pending": jupyterlab_port.pending(cluster),
        "stopped": [asdict(unit) for unit in now.stopped],
        "reshaped": now.reshaped,
        **optional,
        "verification": verified
        and {**verified.summary(), "current": verified.is_of(allocation, configured)},
    }


def of_none(paths: ClusterPaths, engine: EngineName) -> dict[str, Any]:
    """Return the document of `status` for a cluster without nodes: absent, or partly made."""
    allocated = False  # whether the testbed has resources, or may have
    if paths.project.pulumi.exists():
        stack = Stack(paths, engine)
        resources = stack.export().get("deployment", {}).get("resources") or ()
        types = {each["type"].rpartition(":")[2] for each in resources if each.get("custom")}
        allocated = bool(types - _HERE) or stack.interrupted()
    return {
        "engine": engine,
        "state": unfinished.state(paths) or ("allocated" if allocated else "absent"),
        "nodes": [],
        "lease": leases.Record().document(),
        "services": [],
        "verification": None,
    }


def _unreadable(cluster: Cluster, engine: EngineName) -> list[dict[str, str]]:
    errors = list[GpubedError]()
    try:
        if cluster.allocation.nodes:
            secret.require_key(cluster.paths)
    except Unreadable:
        pass  # an unreadable key is not lost
    except GpubedError as error:
        errors.append(error)
    try:
        if cluster.paths.project.pulumi.exists():
            Stack(cluster.paths, engine).export()
    except GpubedError as error:
        errors.append(error)
    return [{"message": error.message, "hint": error.hint or ""} for error in errors]


def _unwell(now: Condition) -> dict[str, dict[str, str]]:
    rows = {name: {"state": probe.FULL, "reason": why} for name, why in now.full.items()}
    for health in now.unwell:
        if now.nodes[health.node] == "ready":
            full = now.full.get(health.node)
            reason = f"{health.reason}; {full}" if full else health.reason
            rows[health.node] = {"state": health.state, "reason": reason}
    return rows


def current_lease(cluster: Cluster, now: Condition | None) -> leases.Record:
    """Return the lease; an empty one if the testbed took the nodes back before its end."""
    try:
        lease = leases.read(cluster)
    except GpubedError as error:
        progress.note(f"the lease is the last one known: {error.message}")
        lease = leases.last_known(cluster.paths)
    gone = now is not None and set(now.nodes.values()) == {"missing"}
    return leases.Record() if gone and lease.state(0) != "expired" else lease

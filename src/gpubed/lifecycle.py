"""The life of a cluster: plan, up, status, down. What the verbs of the same name do."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpubed import allocation as allocations
from gpubed import (
    applied,
    condition,
    costs,
    due,
    handover,
    health,
    identities,
    left_out,
    lost_state,
    progress,
    registry,
    runlock,
    secret,
    services,
    unfinished,
)
from gpubed import audit as audits
from gpubed import lease as leases
from gpubed.allocation import Allocation, Node
from gpubed.backends.base import Backend, Existing, Fault, JobTestbed
from gpubed.condition import Condition
from gpubed.due import Due
from gpubed.engine import LogEvent, ResourceEvent, Result
from gpubed.errors import GpubedError, Locked, PrerequisiteMissing, Refused
from gpubed.hardware import facts as hardware
from gpubed.hardware.facts import Facts
from gpubed.lost_state import Approve
from gpubed.paths import ClusterPaths
from gpubed.plan import ClusterPlan, from_file
from gpubed.reading import Unreadable
from gpubed.stack import EngineName, Stack
from gpubed.verification import Verification

# The role of each service.
_ROLES = {"jupyterlab": "jupyterlab", services.STATUS: "monitoring"}
_NOT_A_CHANGE = {"same", "read", "refresh"}


@dataclass(frozen=True)
class Removal:
    """What `down` did.

    Attributes:
        removed: What is gone.
        kept: Data that was to stay.
        survivors: What should have gone and did not.
        others: What has the cluster's name and another UUID: nothing was done to it.
    """

    removed: list[str]
    kept: list[str]
    survivors: list[str]
    others: list[Existing]


@dataclass(frozen=True)
class Preview:
    """What `up` would do.

    Attributes:
        plan: What is wanted.
        steps: What becomes of the resources.
        damage: What is wrong now and will be put right, a line each.
        roles: The nodes on which roles will be applied, by role.
    """

    plan: ClusterPlan
    steps: Result
    damage: Sequence[str]
    roles: Due


def preview(cluster: ClusterPaths, engine: EngineName) -> Preview:
    """Compute what `up` would do; nothing is changed."""
    wanted = from_file(cluster.spec)
    backend = registry.backend(wanted.backend)
    backend.require_engine(engine)
    cluster.project.prepare()
    damage = _damage(cluster, wanted, backend)
    planned = Stack(cluster, engine).preview(_emit, refresh=damage is not None)
    found = damage[1] if damage else None
    configures = wanted.spec.configure and not isinstance(backend, JobTestbed)
    return Preview(
        wanted,
        planned,
        found.words if found else [],
        _foreseen(cluster, wanted, planned, found) if configures else {},
    )


def _foreseen(
    cluster: ClusterPaths, wanted: ClusterPlan, planned: Result, found: Condition | None
) -> Due:
    granted = None
    with suppress(GpubedError):
        granted = allocations.load(cluster.allocation)
    return due.foreseen(
        cluster,
        wanted,
        granted,
        anew=[step.name for step in planned.steps if step.op in ("create", "replace")],
        strange=_in_state(found, condition.UNRECOGNIZED) if found else (),
        cut=_unconfigured(found) if found else (),
        broken=_unserved(found) if found else None,
    )


def up(
    cluster: ClusterPaths,
    engine: EngineName,
    *,
    approve: Approve,
    verify: bool = False,
    refresh: bool = False,
) -> Result:
    """Make the cluster what its specification says, ready and verified.

    Raises:
        UsageError: The specification has errors, or what it costs was not approved.
        PrerequisiteMissing: The testbed cannot be used from here.
        Locked: Another run holds the cluster.
        GpubedError: A resource, a role or a check failed.
    """
    wanted = from_file(cluster.spec)
    backend = registry.backend(wanted.backend)
    backend.require_engine(engine)
    cluster.project.prepare()
    with runlock.hold(cluster.state, "up") as ended:
        if ended:
            progress.emit("note", message=f"ended what a killed run left behind: {ended}")
        stack = Stack(cluster, engine)
        stack.mend()
        lost_state.mind(stack, backend, wanted, approve)
        if not stack.outputs():
            _require(backend, wanted)
        killed = cluster.state / "killed"
        if stack.interrupted():
            # Outlives this run, should it be killed too: `refresh` clears the stack's own trace.
            killed.touch()
        damaged = _look_first(stack, wanted, backend, refresh=refresh, killed=killed.exists())
        if killed.exists() and backend.native:
            # Pulumi's plugins adopt nothing, and would find names and addresses in use.
            _remove_leftovers(stack, approve)
        result = _up(stack, backend, wanted, approve)
        if killed.exists():
            # What was still wanted has been adopted; nobody will ask for the rest.
            _remove_leftovers(stack, approve)
            killed.unlink()
        granted = allocations.load(cluster.allocation)
        identities.keep(cluster, granted.uuid)
        _lease(cluster, wanted, granted, None)
        if damaged or not changed(result):
            _require_whole(cluster, wanted, granted, backend, started=changed(result))
        if changed(result):
            return result
        if verify and wanted.spec.configure and granted.nodes:
            handover.verify_cluster(cluster, wanted, granted)
    return result


def _require_whole(
    cluster: ClusterPaths,
    wanted: ClusterPlan,
    granted: Allocation,
    backend: Backend,
    *,
    started: bool,
) -> None:
    """Refuse a cluster that is not whole, once nodes that were started have booted."""
    if started and backend.boots_later:
        handover.await_nodes(cluster, granted)
    condition.require(cluster, wanted, granted, backend)


def _up(stack: Stack, backend: Backend, wanted: ClusterPlan, approve: Approve) -> Result:
    with left_out.of_run(stack.cluster, wanted) as run:
        _remove_faulty(stack, backend)
        if stack.has_resources():
            # Looked at first: what refuses must do so before anything is deleted.
            planned = stack.preview(_discard_steps)
            if lost := [costs.cost(step) for step in costs.doomed(planned)]:
                if found := backend.refusals(wanted):
                    said = "\n  ".join(finding.message for finding in found)
                    raise Refused(f"nothing was changed, since {said}", found[0].fix)
                approve(lost)
            if not changed(planned):
                return planned
        while True:
            try:
                return stack.up(_emit)
            except Locked:
                raise
            except GpubedError:
                # A plugin says that a server is not what it should be, the testbed says why.
                if not (faults := _remove_faulty(stack, backend)):
                    raise
                run.add(faults)


def _remove_faulty(stack: Stack, backend: Backend) -> list[Fault]:
    """Remove nodes that never started: a plugin keeps them in the state as if they had."""
    faults: list[Fault] = []
    with suppress(GpubedError):
        faults = backend.faults(stack.cluster.name)
    if faults:
        audits.remove(backend, [fault.thing for fault in faults])
        stack.refresh(_emit)
    return faults


def _remove_leftovers(stack: Stack, approve: Approve) -> None:
    """Remove what a killed run left; nodes only when told to: they may be of a state put back."""
    if nodes := [str(thing) for thing in audits.unrecorded(stack) if thing.node]:
        approve(
            [f"{node}: it is in no state, as one that a killed run was making" for node in nodes]
        )
    if gone := audits.remove_unrecorded(stack):
        progress.emit("note", message=f"removed what a killed run left: {', '.join(gone)}")


def changed(result: Result) -> bool:
    """Say whether a run changed anything, or a preview would."""
    return any(count for op, count in result.changes.items() if op not in _NOT_A_CHANGE)


def _look_first(
    stack: Stack, wanted: ClusterPlan, backend: Backend, *, refresh: bool, killed: bool
) -> bool:
    """Look at what became of the cluster, and bring the state up to it where they differ.

    Returns:
        Whether something of it is damaged: nodes, networks or services.
    """
    cluster = stack.cluster
    if not (refresh or killed):
        leases.check_not_expired(cluster)
    damage = _damage(cluster, wanted, backend)
    if damage:
        if not refresh:
            condition.recognize(cluster, *damage)
        _prepare_repair(cluster, *damage)
    if refresh or killed or damage:
        stack.refresh(_emit)
    return damage is not None


def _damage(
    cluster: ClusterPaths, wanted: ClusterPlan, backend: Backend
) -> tuple[Allocation, Condition] | None:
    """Look at what was granted; None where nothing was, or all is well."""
    try:
        if not secret.public_key(cluster.private_key):
            return None  # nobody can look; the key is exchanged like one that has changed
        granted = allocations.load(cluster.allocation)
    except GpubedError:
        return None  # what cannot be read is written again
    found = condition.look(cluster, wanted, granted, backend)
    return None if found.state == "ready" else (granted, found)


def _prepare_repair(cluster: ClusterPaths, granted: Allocation, found: Condition) -> None:
    """Let what is damaged count as not configured, and nothing as verified."""
    for line in found.words:
        progress.emit("note", message=line)
    applied.forget(cluster, granted, _unconfigured(found), _unserved(found))
    cluster.verification.unlink(missing_ok=True)


def _unconfigured(found: Condition) -> list[str]:
    return _in_state(found, "cut", "unshaped")


def _in_state(found: Condition, *states: str) -> list[str]:
    return [name for name, state in found.nodes.items() if state in states]


def _unserved(found: Condition) -> Due:
    """Return the nodes on which roles' services do not work, by role."""
    unserved = {_ROLES[name]: list(found.nodes) for name in found.broken}
    for one in found.stopped:
        unserved.setdefault(one.role, []).append(one.node)
    return unserved


def status(cluster: ClusterPaths, engine: EngineName) -> dict[str, Any]:
    """Return the document of `status`: nodes and their hardware, lease, services, verification.

    Raises:
        GpubedError: The cluster is not up.
    """
    granted = allocations.load(cluster.allocation)
    backend = registry.backend(granted.backend)
    wanted = from_file(cluster.spec)
    now = condition.look(cluster, wanted, granted, backend)
    unwell = _unwell(cluster, wanted, granted, now)
    unreadable = _unreadable(cluster, engine, granted)
    verified = _verified(cluster)
    found = hardware.of_cluster(cluster.facts, granted)
    return {
        "engine": engine,
        "state": unfinished.state(cluster) or ("degraded" if unwell or unreadable else now.state),
        "unreadable": unreadable,
        "nodes": [
            {
                **_node_row(node, now.nodes[node.name], found.get(node.name)),
                **unwell.get(node.name, {}),
            }
            for node in granted.nodes
        ],
        "failed": [failure.model_dump() for failure in granted.failed],
        "lease": _lease(cluster, wanted, granted, now).document(),
        "services": _services(wanted, granted, now),
        "stopped": [asdict(one) for one in now.stopped],
        **_jobs(backend, wanted, granted),
        "verification": verified.summary() if verified else None,
    }


def data_of(cluster: ClusterPaths, engine: EngineName) -> list[Existing]:
    """Return the volumes that a cluster's data is on."""
    cluster.project.prepare()
    uuid, backend = audits.owner(Stack(cluster, engine))
    if backend is None or uuid is None:
        return []
    found = backend.existing(cluster.name) + backend.data_within(cluster.name)
    return [thing for thing in found if thing.uuid == uuid and thing.data]


def shared_disk(cluster: ClusterPaths) -> str:
    """Name the node on whose own disk the shared storage is, if it goes with that node."""
    with suppress(GpubedError):
        granted, wanted = allocations.load(cluster.allocation), from_file(cluster.spec)
        shared = wanted.spec.storage.shared
        if granted.nodes and shared.provider == "nfs":
            lent = registry.backend(granted.backend).removes_disks
            return (shared.server or granted.head.name) if lent else ""
    return ""


def down(cluster: ClusterPaths, engine: EngineName, *, keep_data: bool = False) -> Removal:
    """Remove everything that carries the cluster's id, and the cluster's state.

    Results of jobs (`runs/`) are the user's and stay.

    Args:
        keep_data: Whether volumes stay, for the next `up` to take over.
    """
    cluster.project.prepare()
    with runlock.hold(cluster.state, "down"):
        stack = Stack(cluster, engine)
        stack.mend()
        uuid, backend = audits.owner(stack)
        if backend is None and identities.kept(cluster):
            raise GpubedError(
                f"the data of {cluster.name} was kept, and its specification, which says where, "
                "cannot be read",
                f"gpubed check {cluster.name}",
            )
        if backend:
            backend.require_engine(engine)

        def existing() -> list[Existing]:
            return backend.existing(cluster.name) if backend else []

        def left() -> list[Existing]:
            mine = [thing for thing in existing() if thing.uuid == uuid]
            return [thing for thing in mine if not (keep_data and thing.data)]

        within = backend.data_within(cluster.name) if backend and keep_data else []
        # Only through nodes, while there are some.
        stays = backend.remove_data(cluster.name) if backend and not keep_data else []
        # What is not in the state may hold on to what is.
        removed = audits.remove_unrecorded(stack, transient=True)
        result = stack.destroy(_emit)
        removed += [
            f"{costs.kind_of(e)} {e.name}"
            for e in result.steps
            if e.op == "delete" and costs.kind_of(e) != "Volume"
        ]
        if backend:
            removed += audits.remove(backend, left())
        survivors = [str(thing) for thing in (*left(), *stays)]
        there = existing()
        kept = [
            thing for thing in there if thing.uuid == uuid and thing.data and keep_data
        ] + within
        if kept and uuid:
            identities.keep(cluster, uuid)
        if not survivors:
            records = {"uuid", *(backend.data_records if backend else ())} if kept else set()
            removed += _forget(cluster, {"runs", *records})
        others = [thing for thing in there if thing.uuid != uuid]
    return Removal(removed, [str(thing) for thing in kept], survivors, others)


def _forget(cluster: ClusterPaths, but: set[str]) -> list[str]:
    gone = []
    for path in sorted(cluster.state.iterdir()):
        if path.name in but:
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        if path.name != "lock":
            gone.append(f"file {path.relative_to(cluster.project.root)}")
    if not any(cluster.state.iterdir()):
        cluster.state.rmdir()
    return gone


def _require(backend: Backend, wanted: ClusterPlan) -> None:
    missing = [finding for finding in backend.doctor(wanted.spec) if not finding.ok]
    if missing:
        first = missing[0]
        rest = "".join(f"\n  {finding.message}" for finding in missing[1:])
        raise PrerequisiteMissing(first.message + rest, first.fix)


def _jobs(backend: Backend, wanted: ClusterPlan, granted: Allocation) -> dict[str, Any]:
    if not isinstance(backend, JobTestbed):
        return {}
    return {"jobs": [asdict(job) for job in backend.jobs(wanted.spec, granted.uuid)]}


def _verified(cluster: ClusterPaths) -> Verification | None:
    try:
        return Verification.last(cluster.verification)
    except Unreadable as error:
        progress.emit("note", message=f"{error.message}: it counts as none, {error.hint}")
        return None


def _unreadable(
    cluster: ClusterPaths, engine: EngineName, granted: Allocation
) -> list[dict[str, str]]:
    """Say why no other verb could go on from the state, and what helps; empty where it could."""
    found = []
    with suppress(GpubedError):  # one that cannot be read is not lost
        if granted.nodes and not secret.public_key(cluster.private_key):
            message = f"the cluster's SSH key is lost ({cluster.private_key}): no node lets us in"
            hint = f"put it back, or see what a new one costs: gpubed plan {cluster.name}"
            found.append({"message": message, "hint": hint})
    if not cluster.project.pulumi.exists():
        return found
    try:
        Stack(cluster, engine).export()
    except GpubedError as error:
        found.append({"message": error.message, "hint": error.hint or ""})
    return found


def _services(wanted: ClusterPlan, granted: Allocation, now: Condition) -> list[dict[str, str]]:
    if not wanted.spec.configure:
        return []
    known = services.urls(wanted, granted)
    return [{**service, "reason": now.services.get(service["name"], "")} for service in known]


def _unwell(
    cluster: ClusterPaths, wanted: ClusterPlan, granted: Allocation, now: Condition
) -> dict[str, dict[str, str]]:
    """Return what nodes that answer say against themselves, as parts of their rows, by name."""
    there = [node for node in granted.nodes if now.nodes[node.name] == "ready"]
    looked = health.unwell(cluster, wanted, there) if wanted.spec.configure else []
    said = {name: {"state": condition.FULL, "reason": why} for name, why in now.full.items()}
    for found in looked:
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


def _lease(
    cluster: ClusterPaths, wanted: ClusterPlan, granted: Allocation, now: Condition | None
) -> leases.Record:
    """Return until when the nodes are lent; of nodes that went before their time, nothing is."""
    try:
        known = leases.read(cluster, wanted, granted)
    except GpubedError as error:
        progress.emit("note", message=f"the lease is what was known before: {error.message}")
        known = leases.last(cluster)
    gone = now is not None and set(now.nodes.values()) == {"missing"}
    return leases.Record() if gone and known.state(0) != "expired" else known


def _discard_steps(event: ResourceEvent | LogEvent) -> None:
    """Of a look ahead, only what went wrong is told: its steps come again."""
    if isinstance(event, LogEvent) or event.status == "failed":
        _emit(event)


def _emit(event: ResourceEvent | LogEvent) -> None:
    if isinstance(event, ResourceEvent):
        progress.emit(
            "resource",
            op=event.op,
            status=event.status,
            urn=event.urn,
            type=event.type,
            name=event.name,
            seconds=event.seconds,
            message=event.message,
        )
    else:
        progress.emit("log", severity=event.severity, message=event.message, urn=event.urn)


@contextmanager
def event_file(cluster: ClusterPaths, verb: str, wanted: Path | None) -> Iterator[Path]:
    """Offer a file to all who have progress to tell, in this process and its workers."""
    path = wanted or cluster.logs / time.strftime(f"%Y%m%d-%H%M%S-{verb}.jsonl")
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    os.environ[progress.VARIABLE] = str(path)
    try:
        yield path
    finally:
        os.environ.pop(progress.VARIABLE, None)

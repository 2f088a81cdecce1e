"""The life of a cluster: plan, up, status, down. What the verbs of the same name do."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpubed import allocation as allocations
from gpubed import audit as audits
from gpubed import handover, left_out, progress, registry, runlock, services
from gpubed import lease as leases
from gpubed.allocation import Allocation, Node
from gpubed.backends.base import Backend, Existing, Fault, JobTestbed
from gpubed.engine import LogEvent, ResourceEvent, Result
from gpubed.errors import GpubedError, Locked, PrerequisiteMissing
from gpubed.hardware import facts as hardware
from gpubed.hardware.facts import Facts
from gpubed.paths import ClusterPaths
from gpubed.plan import ClusterPlan, from_file
from gpubed.ssh import HostKeyMismatch, greet
from gpubed.stack import EngineName, Stack
from gpubed.verification import Verification

_UNRECOGNIZED = "unrecognized"
_NOT_A_CHANGE = {"same", "read", "refresh"}


@dataclass(frozen=True)
class Removal:
    """What `down` did: `removed` and, when something is left, `survivors`."""

    removed: list[str]
    survivors: list[str]


def preview(cluster: ClusterPaths, engine: EngineName) -> tuple[ClusterPlan, Result]:
    """Compute what `up` would do; nothing is changed."""
    wanted = from_file(cluster.spec)
    registry.backend(wanted.backend).require_engine(engine)
    cluster.project.prepare()
    return wanted, Stack(cluster, engine).preview(_emit)


def up(
    cluster: ClusterPaths, engine: EngineName, *, verify: bool = False, refresh: bool = False
) -> Result:
    """Make the cluster what its specification says, ready and verified.

    Raises:
        UsageError: The specification has errors.
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
        if not stack.outputs():
            _require(backend, wanted)
        killed = cluster.state / "killed"
        if stack.interrupted():
            # Outlives this run, should it be killed too: `refresh` clears the stack's own trace.
            killed.touch()
        if refresh or killed.exists():
            stack.refresh(_emit)
        else:
            leases.check_not_expired(cluster)
        if killed.exists() and backend.native:
            # Pulumi's plugins adopt nothing, and would find names and addresses in use.
            _remove_leftovers(stack)
        result = _up(stack, backend, wanted)
        if killed.exists():
            # What was still wanted has been adopted; nobody will ask for the rest.
            _remove_leftovers(stack)
            killed.unlink()
        granted = allocations.load(cluster.allocation)
        _lease(cluster, wanted, granted)
        if changed(result):
            return result
        probe(cluster, wanted, granted, backend)
        if verify and wanted.spec.configure and granted.nodes:
            handover.verify_cluster(cluster, wanted, granted)
    return result


def _up(stack: Stack, backend: Backend, wanted: ClusterPlan) -> Result:
    with left_out.of_run(stack.cluster, wanted) as run:
        _remove_faulty(stack, backend)
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


def _remove_leftovers(stack: Stack) -> None:
    if gone := audits.remove_unrecorded(stack):
        progress.emit("note", message=f"removed what a killed run left: {', '.join(gone)}")


def changed(result: Result) -> bool:
    """Say whether a run changed anything, or a preview would."""
    return any(count for op, count in result.changes.items() if op not in _NOT_A_CHANGE)


def probe(
    cluster: ClusterPaths, wanted: ClusterPlan, granted: Allocation, backend: Backend
) -> None:
    """Look quickly whether an unchanged cluster is still alive.

    Raises:
        GpubedError: A node or a service does not answer.
        HostKeyMismatch: Somebody else answers in a node's place.
    """
    states = node_states(cluster, wanted, granted, backend)
    for node in granted.nodes:
        if states[node.name] == _UNRECOGNIZED:
            greet(node, cluster)  # its words are more than a state
    if dead := {name: state for name, state in states.items() if state != "ready"}:
        listed = ", ".join(f"{name} is {state}" for name, state in dead.items())
        raise GpubedError(listed, f"gpubed up {cluster.name} --refresh")
    if wanted.spec.configure:
        services.probe(cluster, wanted, granted)


def node_states(
    cluster: ClusterPaths, wanted: ClusterPlan, granted: Allocation, backend: Backend
) -> dict[str, str]:
    """Return each node's state: ready, unreachable, unrecognized, stopped or missing.

    Unrecognized is one that answers with another host key than its own.

    Of bare nodes, it is what the testbed says: nobody logs in to them.
    """
    states = backend.describe(granted)
    if not wanted.spec.configure:
        return states

    def look(node: Node) -> str:
        if states[node.name] != "ready":
            return states[node.name]
        try:
            greet(node, cluster)
        except HostKeyMismatch:
            return _UNRECOGNIZED
        except GpubedError:
            return "unreachable"
        return "ready"

    with ThreadPoolExecutor(max_workers=16) as pool:
        return dict(
            zip((n.name for n in granted.nodes), pool.map(look, granted.nodes), strict=True)
        )


def status(cluster: ClusterPaths, engine: EngineName) -> dict[str, Any]:
    """Return the document of `status`: nodes and their hardware, lease, services, verification.

    Raises:
        GpubedError: The cluster is not up.
    """
    granted = allocations.load(cluster.allocation)
    backend = registry.backend(granted.backend)
    wanted = from_file(cluster.spec)
    states = node_states(cluster, wanted, granted, backend)
    verified = Verification.last(cluster.verification)
    found = hardware.of_cluster(cluster.facts, granted)
    return {
        "engine": engine,
        "nodes": [
            _node_row(node, states[node.name], found.get(node.name)) for node in granted.nodes
        ],
        "failed": [failure.model_dump() for failure in granted.failed],
        "lease": _lease(cluster, wanted, granted).document(),
        "services": services.urls(wanted, granted) if wanted.spec.configure else [],
        **_jobs(backend, wanted, granted),
        "verification": verified.summary() if verified else None,
    }


def down(cluster: ClusterPaths, engine: EngineName) -> Removal:
    """Remove everything that carries the cluster's id, and the cluster's state.

    Results of jobs (`runs/`) are the user's and stay.
    """
    cluster.project.prepare()
    with runlock.hold(cluster.state, "down"):
        stack = Stack(cluster, engine)
        uuid, backend = audits.owner(stack)
        if backend:
            backend.require_engine(engine)

        def left() -> list[Existing]:
            found = backend.existing(cluster.name) if backend and uuid else []
            return [thing for thing in found if thing.uuid == uuid]

        # What is not in the state may hold on to what is.
        removed = audits.remove_unrecorded(stack, transient=True)
        result = stack.destroy(_emit)
        removed += [
            f"{e.type.rsplit(':', 1)[-1]} {e.name}" for e in result.steps if e.op == "delete"
        ]
        if backend:
            removed += audits.remove(backend, left())
        survivors = [str(thing) for thing in left()]
        if not survivors:
            removed += _forget(cluster)
    return Removal(removed, survivors)


def _forget(cluster: ClusterPaths) -> list[str]:
    gone = []
    for path in sorted(cluster.state.iterdir()):
        if path.name == "runs":
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
        if path.name != "lock":
            gone.append(f"file {path.relative_to(cluster.project.root)}")
    if not cluster.runs.exists():
        shutil.rmtree(cluster.state)
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


def _node_row(node: Node, state: str, found: Facts | None) -> dict[str, Any]:
    return {
        "name": node.name,
        "id": node.id,
        "state": state,
        "role": node.role,
        "control_address": node.control_address,
        "experiment_address": node.experiment_address,
        "gpus": node.gpus,
        "hardware": found and found.summary(),
    }


def _lease(cluster: ClusterPaths, wanted: ClusterPlan, granted: Allocation) -> leases.Record:
    try:
        return leases.read(cluster, wanted, granted)
    except GpubedError as error:
        progress.emit("note", message=f"the lease is what was known before: {error.message}")
        return leases.last(cluster)


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

"""`gpubed up`: makes a cluster what its specification says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from gpubed.cluster import audit as audits
from gpubed.cluster import condition, costs, damage, doctor, handover, hung, lost_state
from gpubed.cluster import lease as leases
from gpubed.cluster.condition import Condition
from gpubed.cluster.damage import Seen
from gpubed.cluster.events import discard_steps, emit
from gpubed.cluster.lost_state import Approve
from gpubed.cluster.status import current_lease
from gpubed.configuration import jupyterlab_port, owners_variables, served_folder
from gpubed.core import parallel, progress, runlock
from gpubed.core.errors import GpubedError, Locked, PrerequisiteMissing, Refused
from gpubed.core.paths import ClusterPaths
from gpubed.engines.embedded import LogEvent, ResourceEvent, Result
from gpubed.engines.stack import EngineName, Stack
from gpubed.nodes import allocation as allocations
from gpubed.nodes import rates
from gpubed.nodes.cluster import Cluster
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds import begun, identities, left_out, made_on, registry
from gpubed.testbeds.asked import Testbeds
from gpubed.testbeds.base import Fault, Finding, Testbed
from gpubed.testbeds.specification import load_plan, load_same

_NOT_A_CHANGE = {"same", "read", "refresh"}


@dataclass(frozen=True)
class Done:
    """What an `up` did.

    Attributes:
        result: What the engine says of it.
        seen: How the cluster was when it was looked at last; None if it was changed since.
        restarted: Nodes that hung, and were restarted.
    """

    result: Result
    seen: Condition | None = None
    restarted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ahead:
    """What the engine would do, and what it said when it was asked."""

    result: Result
    told: Sequence[ResourceEvent | LogEvent]


def up(
    paths: ClusterPaths,
    engine: EngineName,
    *,
    approve: Approve,
    verify: bool = False,
    refresh: bool = False,
    still_wanted: Callable[[], None] = lambda: None,
    given_time: Collection[str] = (),
) -> Done:
    """Make the cluster what its specification says, ready and verified.

    Args:
        still_wanted: Called once the cluster is held; raises to give the run up.
        given_time: Nodes that have been silent for as long as they may take to boot.

    Raises:
        UsageError: The specification has errors, or variables beside it, or what it costs was
            not approved.
        PrerequisiteMissing: The testbed cannot be used from here, or a folder has the name of a
            file of the cluster.
        Locked: Another run holds the cluster.
        GpubedError: A resource, a role or a check failed, or a node hangs.
    """
    plan = load_plan(paths.spec)
    owners_variables.require_readable(paths)
    testbed = registry.bound(plan.backend, paths)
    testbed.backend.require_engine(engine)
    paths.project.prepare()
    paths.require_files()
    with runlock.hold(paths.state, "up") as ended:
        still_wanted()
        paths.removing.unlink(missing_ok=True)
        if ended:
            progress.emit("note", message=f"ended what a killed run left behind: {ended}")
        stack = Stack(paths, engine)
        stack.mend()
        asked = audits.testbeds(stack, testbed)
        asked.require_same(testbed)
        _restore_rates(paths, last=False)  # before links are measured
        _mind_what_is_there(stack, testbed, plan, approve)
        if not stack.outputs():
            _require(testbed, plan)
        killed = paths.state / "killed"
        if stack.interrupted():
            # Outlives this run, should it be killed too: `refresh` clears the stack's own trace.
            killed.touch()
        anew = refresh or killed.exists()
        seen, ahead = _look_first(
            stack, asked, plan, approve, refresh=refresh, killed=killed.exists()
        )
        damaged = damage.damaged(seen)
        if killed.exists() and testbed.backend.native:
            # Pulumi's plugins adopt nothing, and would find names and addresses in use.
            _remove_leftovers(stack, asked, approve)
        done = _up(stack, testbed, asked, plan, approve, damaged, ahead, given_time)
        result = done.result
        if killed.exists():
            # What was still wanted has been adopted; nobody will ask for the rest.
            _remove_leftovers(stack, asked, approve)
            killed.unlink()
        made_on.forget_attempts(testbed)
        cluster = Cluster(paths, plan, allocations.load(paths.allocation))
        identities.keep(paths, cluster.allocation.uuid)
        current_lease(cluster, None)
        _restore_rates(paths, last=True)
        found = None
        if damaged or not changed(result):
            # A look a moment ago that found all well, after which nothing was changed, is enough.
            found = seen[1] if seen and not damaged and not anew else None
            found = found or _require_whole(testbed, cluster, started=changed(result))
        leases.tell_nodes(cluster)
        if changed(result):
            return replace(done, seen=found)
        if plan.spec.configure and cluster.allocation.nodes:
            served_folder.remember(cluster)  # a former version did not
            jupyterlab_port.remember(cluster)
        if verify and plan.spec.configure and cluster.allocation.nodes:
            handover.verify_cluster(cluster)
    return replace(done, seen=found)


def _mind_what_is_there(
    stack: Stack, testbed: Testbed, plan: ClusterPlan, approve: Approve
) -> None:
    """Mind what a lost state knew of; where the testbed cannot be asked, say what is missing."""
    try:
        lost_state.mind(stack, testbed, plan, approve)
    except (PrerequisiteMissing, Refused):
        _require(testbed, plan)
        raise


def _restore_rates(paths: ClusterPaths, *, last: bool) -> None:
    """Put back what a killed `bench` changed; before nodes are repaired, one may not answer."""
    if not paths.reshaped.exists() or not paths.allocation.exists():
        return
    for fault in rates.restore(paths, allocations.load(paths.allocation)):
        message = f"a link has not got its declared rate back: {fault}"
        if last:
            raise GpubedError(message, f"gpubed up {paths.name} --refresh")
        progress.emit("note", message=message)


def _require_whole(testbed: Testbed, cluster: Cluster, *, started: bool) -> Condition:
    """Refuse a cluster that is not whole, once nodes that were started have booted."""
    if started and testbed.backend.boots_later:
        handover.await_nodes(cluster)
    return condition.require(testbed, cluster)


def _up(
    stack: Stack,
    testbed: Testbed,
    asked: Testbeds,
    plan: ClusterPlan,
    approve: Approve,
    damaged: Seen | None,
    ahead: Ahead | None,
    given_time: Collection[str],
) -> Done:
    restarted: tuple[str, ...] = ()
    with left_out.of_run(stack.paths, plan) as run:
        if _remove_faulty(stack, testbed, asked, approve):
            ahead = None  # of another state
        planned = _look_ahead(stack, testbed, asked, plan, approve, ahead)
        _note_testbeds(testbed, asked)
        if damaged:
            # A plan does not know of that yet.
            spared = costs.nodes_that_go(planned)
            restarted = hung.bring_back(*damaged, approve, spared=spared, given_time=given_time)
            if restarted:
                # What starts at boot may not have come back, nor what networks rest on.
                damaged = damage.look(stack.paths, plan) or damaged
            damage.prepare_repair(*damaged)
        elif planned and not changed(planned):
            return Done(planned)
        _require_packages(stack.paths, plan)
        while True:
            # A user may have had time to edit it, while he was asked or nodes were mended.
            load_same(stack.paths.spec, plan.spec.digest)
            try:
                return Done(_applied(stack, testbed, planned), restarted=restarted)
            except Locked:
                raise
            except GpubedError as error:
                if explained := testbed.backend.explained(error):
                    raise explained from error
                # The error says only that a server did not come up, and the testbed says which and
                # why: faulty ones are removed, and then `up` tries again.
                if not (faults := _remove_faulty(stack, testbed, asked, approve)):
                    raise
                run.add(faults)


def _applied(stack: Stack, testbed: Testbed, planned: Result | None) -> Result:
    """Let the engine make the cluster what it is to be.

    Our own resources note themselves that nodes are about to be changed; those of Pulumi's plugins
    know nothing of that. If none of them was begun, nothing has been changed.
    """
    paths, acted = stack.paths, False
    native = planned and testbed.backend.native and costs.changes_nodes(planned)
    if not native or begun.is_noted(paths) or not begun.has_nodes(paths):
        return stack.up(emit)

    def hear(event: ResourceEvent | LogEvent) -> None:
        nonlocal acted
        if isinstance(event, ResourceEvent) and event.op not in _NOT_A_CHANGE:
            acted = True
        emit(event)

    begun.note(paths)
    try:
        return stack.up(hear)
    except BaseException:
        if not acted:
            begun.forget(paths)
        raise


def _note_testbeds(testbed: Testbed, asked: Testbeds) -> None:
    """Keep where the cluster is, or was made before, and the specification that is applied now."""
    asked.note()
    made_on.keep_specification(testbed)


def _preview(stack: Stack) -> Ahead | None:
    """Compute what the engine would do; None where no state tells, or it fails (it will again)."""
    told: list[ResourceEvent | LogEvent] = []
    with suppress(GpubedError):
        return Ahead(stack.preview(told.append), told) if stack.has_resources() else None
    return None


def _look_ahead(
    stack: Stack,
    testbed: Testbed,
    asked: Testbeds,
    plan: ClusterPlan,
    approve: Approve,
    ahead: Ahead | None = None,
) -> Result | None:
    """Refuse, or ask about, what a run costs before anything goes; None where no state tells."""
    if ahead:
        planned: Result | None = ahead.result
        for event in ahead.told:
            discard_steps(event)
    else:
        planned = stack.preview(discard_steps) if stack.has_resources() else None
    if planned and testbed.backend.vacates and costs.makes_nodes(planned):
        lost_state.spare(stack, asked, plan)
    steps = planned.steps if planned else ()
    there = None if planned else lost_state.of_lost(testbed)
    left = served_folder.left_behind(stack.paths, plan, steps, there)
    lost = costs.lost(planned, left) if planned else left
    # Of nodes that a plugin begins to make and cannot, something is left.
    makes = planned is not None and testbed.backend.native and costs.makes_nodes(planned)
    if (lost or makes) and (found := testbed.refusals(plan)):
        said = "\n  ".join(finding.message for finding in found)
        raise Refused(f"nothing was changed, since {said}", found[0].fix)
    if lost:
        approve(lost)
    return planned


def _remove_faulty(
    stack: Stack, testbed: Testbed, asked: Testbeds, approve: Approve
) -> list[Fault]:
    """Remove nodes that never started: a plugin keeps them in the state as if they had."""
    faults: list[Fault] = []
    with suppress(GpubedError):
        uuid = audits.uuid_of(stack)
        # Nobody is asked: another cluster of the name keeps its own, whatever was handed back.
        faults = [fault for fault in testbed.faults() if fault.thing.uuid == uuid]
    for fault in faults:
        testbed.remove(fault.thing)
    if faults:
        _refresh(stack, asked, approve)
    return faults


def _refresh(stack: Stack, asked: Testbeds, approve: Approve) -> None:
    """Bring the state up to what is there.

    Volumes that have vanished are asked about first: once the state has forgotten them, nobody
    could tell that the empty ones made in their place are not the first.
    """
    if gone := costs.gone(audits.missing_data(stack, asked)):
        approve(gone)
    asked.require_refreshable()
    stack.refresh(emit)


def _remove_leftovers(stack: Stack, asked: Testbeds, approve: Approve) -> None:
    """Remove what a killed run left; nodes only when told to: they may be of a state put back."""
    if nodes := [str(thing) for thing in audits.unrecorded(stack, asked) if thing.node]:
        approve(
            [f"{node}: it is in no state, as one that a killed run was making" for node in nodes]
        )
    if gone := audits.remove_unrecorded(stack, asked):
        progress.emit("note", message=f"removed what a killed run left: {', '.join(gone)}")


def changed(result: Result) -> bool:
    """Say whether a run changed anything, or a preview would."""
    return any(count for op, count in result.changes.items() if op not in _NOT_A_CHANGE)


def _look_first(
    stack: Stack,
    asked: Testbeds,
    plan: ClusterPlan,
    approve: Approve,
    *,
    refresh: bool,
    killed: bool,
) -> tuple[Seen | None, Ahead | None]:
    """Look at what became of the cluster, and bring the state up to it where they differ.

    Returns:
        What was granted, and how it is; None where nobody could look. And what the engine would
        do, if that was computed meanwhile and holds.
    """
    paths = stack.paths
    if not (refresh or killed):
        leases.check_not_expired(paths)
    with parallel.beside(lambda: damage.look(paths, plan)) as looking:
        # Most often nothing is damaged, and what the engine computes from its state holds. What an
        # earlier run left out is told to the engine only once this one has begun.
        ahead = None if refresh or killed or paths.left_out.exists() else _preview(stack)
        seen = looking.result()
    damaged = damage.damaged(seen)
    if damaged:
        if not refresh:
            condition.recognize(*damaged)
        for line in damaged[1].words:
            progress.emit("note", message=line)
    if refresh or killed or damaged:
        _refresh(stack, asked, approve)
        ahead = None  # of another state
    return seen, ahead


def _require(testbed: Testbed, plan: ClusterPlan) -> None:
    _refuse(PrerequisiteMissing, testbed.doctor(plan.spec))


def _require_packages(paths: ClusterPaths, plan: ClusterPlan) -> None:
    """Refuse what roles would do to packages of owners before hosts are marked or changed."""
    _refuse(Refused, doctor.owners_packages(paths, plan))


def _refuse(error: type[GpubedError], findings: Sequence[Finding]) -> None:
    missing = [finding for finding in findings if not finding.ok]
    if missing:
        first = missing[0]
        rest = "".join(
            f"\n  {finding.message}"
            + (f"\n    → {finding.fix}" if finding.fix != first.fix else "")
            for finding in missing[1:]
        )
        raise error(first.message + rest, first.fix)

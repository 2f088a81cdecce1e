"""`gpubed up` makes a cluster match its specification; `gpubed plan` tells what that changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace

from gpubed.cluster import audit as audits
from gpubed.cluster import doctor, lost_state, probe, removals, setup
from gpubed.cluster import lease as leases
from gpubed.cluster.events import discard_steps, emit
from gpubed.cluster.lost_state import Approve
from gpubed.cluster.probe import Condition, Probed
from gpubed.cluster.status import current_lease
from gpubed.configuration import due, jupyterlab_port, owners_variables, shared_storage
from gpubed.configuration.due import Due
from gpubed.core import progress, record, runlock
from gpubed.core.errors import GpubedError, Locked, PrerequisiteMissing, Refused
from gpubed.core.paths import ClusterPaths
from gpubed.engines.embedded import LogEvent, ResourceEvent, Result
from gpubed.engines.stack import EngineName, Stack
from gpubed.nodes import allocation as allocations
from gpubed.nodes import link_rates
from gpubed.nodes.allocation import Cluster
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds import history, registry, uncreated_nodes
from gpubed.testbeds.base import Existing, Fault, Finding, Testbed
from gpubed.testbeds.history import Testbeds
from gpubed.testbeds.specification import frozen, load_plan

_NOT_A_CHANGE = {"same", "read", "refresh"}


@dataclass(frozen=True)
class Done:
    """The outcome of an `up`."""

    result: Result
    condition: Condition | None = None  # the last condition; None if the cluster was changed since
    restarted: tuple[str, ...] = ()  # nodes that hung and were restarted


@dataclass(frozen=True)
class Run:
    """One run of `up`."""

    plan: ClusterPlan
    testbed: Testbed
    stack: Stack
    testbeds: Testbeds  # the testbeds that may have resources of the cluster
    approve: Approve  # called with what would be lost

    @property
    def paths(self) -> ClusterPaths:
        """The cluster's paths."""
        return self.stack.paths


def up(
    paths: ClusterPaths,
    engine: EngineName,
    *,
    approve: Approve,
    verify: bool = False,
    refresh: bool = False,
    still_wanted: Callable[[], None] = lambda: None,
    overdue: Collection[str] = (),
) -> Done:
    """Make the cluster match its specification, ready and verified.

    Raises `Locked` if another run holds the cluster.

    Args:
        approve: Called with the losses that need approval.
        verify: Whether to verify an unchanged cluster, too.
        refresh: Whether to read the state of resources from the testbed first.
        still_wanted: Called once the lock is held; raises to cancel the run.
        overdue: Nodes known to be silent for longer than a boot takes.
    """
    plan = load_plan(paths.spec)
    owners_variables.require_readable(paths)
    testbed = registry.bound(plan.backend, paths)
    testbed.backend.require_engine(engine)
    paths.prepare()
    with runlock.hold(paths.state, "up") as ended, frozen(paths, plan):
        still_wanted()
        if ended:
            progress.note(f"ended processes of a killed run: {ended}")
        stack = Stack(paths, engine)
        stack.mend()
        audits.remember(stack)
        testbeds = audits.testbeds(stack, testbed)
        testbeds.require_same(testbed)
        run = Run(plan, testbed, stack, testbeds, approve)
        _restore_rates(paths, last=False)  # before links are measured
        try:
            lost_state.require_approval(stack, testbed, plan, approve)
        except (PrerequisiteMissing, Refused):
            _refuse(PrerequisiteMissing, testbed.doctor(plan.spec))  # a more precise error
            raise
        if not stack.outputs():
            _refuse(PrerequisiteMissing, testbed.doctor(plan.spec))
        killed = _note_begin(stack)
        probed, planned = _probe_first(run, refresh=refresh or killed)
        damaged = probe.damaged(probed)
        if killed and testbed.backend.native:
            # Pulumi's plugins adopt nothing, and would fail on names and addresses in use.
            _remove_leftovers(run)
        done = _up(run, damaged, planned, overdue)
        if killed:
            # Wanted leftovers have been adopted; the others are of no use.
            _remove_leftovers(run)
            with record.changed(paths) as recorded:
                recorded.killed = False
        history.forget_attempts(testbed)
        # An earlier probe is enough if it found no damage and nothing was changed since.
        found = probed[1] if probed and not (damaged or refresh or killed) else None
        return replace(done, condition=_finish(run, done.result, found, damaged, verify=verify))


def _finish(
    run: Run, result: Result, found: Condition | None, damaged: Probed | None, *, verify: bool
) -> Condition | None:
    """Return the last condition; None if the engine configured and verified since."""
    paths, backend, same = run.paths, run.testbed.backend, not changed(result)
    cluster = Cluster(paths, run.plan, allocations.load(paths.allocation))
    if record.uuid(paths) != cluster.allocation.uuid:
        record.keep_uuid(paths, cluster.allocation.uuid)
    current_lease(cluster, None)
    _restore_rates(paths, last=True)
    if not (damaged or same):
        found = None
    elif not found:
        if not same and backend.boots_later:
            setup.await_nodes(cluster)
        found = probe.require(run.testbed, cluster)
    leases.tell_nodes(cluster)
    if same and run.plan.spec.configure and cluster.allocation.nodes:
        shared_storage.remember(cluster)  # former versions did not
        jupyterlab_port.remember(cluster)
        if verify:
            setup.verify_cluster(cluster)
    return found


def _note_begin(stack: Stack) -> bool:
    """Record that no `down` is under way; return whether a killed run may have left resources.

    The record is needed if this run is killed, too: a refresh clears the mark in the stack's state.
    """
    recorded = record.read(stack.paths)
    killed = recorded.killed or stack.interrupted()
    if recorded.removing is not None or killed != recorded.killed:
        with record.changed(stack.paths) as recorded:
            recorded.removing, recorded.killed = None, killed
    return killed


def _restore_rates(paths: ClusterPaths, *, last: bool) -> None:
    """Restore links that a killed `bench` changed; a failure is an error only at the `last` try."""
    if not record.read(paths).reshaped or not paths.allocation.exists():
        return
    for fault in link_rates.restore(paths, allocations.load(paths.allocation)):
        message = f"a link does not have its declared rate: {fault}"
        if last:
            raise GpubedError(message, f"gpubed up {paths.name} --refresh")
        progress.note(message)


def _up(run: Run, damaged: Probed | None, planned: Result | None, overdue: Collection[str]) -> Done:
    paths, restarted = run.paths, tuple[str, ...]()
    with uncreated_nodes.of_run(paths, run.plan) as note_failed:
        if _remove_faulty(run):
            planned = None  # the state has changed
        planned = _look_ahead(run, planned)
        run.testbeds.note()
        history.note(run.testbed, applied=True)
        if damaged:
            spared = removals.removed_nodes(planned)
            restarted = probe.restart_hung(*damaged, run.approve, spared=spared, overdue=overdue)
            if restarted:
                # Services and networks may be missing after the boot.
                damaged = probe.before_up(paths, run.plan) or damaged
            probe.prepare_repair(*damaged)
        elif planned and not changed(planned):
            return Done(planned)
        # Conflicts with the owner's packages are refused before hosts are changed.
        _refuse(Refused, doctor.owners_packages(paths, run.plan))
        while True:
            try:
                return Done(_applied(run, planned), restarted=restarted)
            except Locked:
                raise
            except GpubedError as error:
                # A plugin may record a failed change, such as another flavor, as done.
                with record.changed(paths) as recorded:
                    recorded.killed |= bool(run.testbed.backend.native)
                if explained := run.testbed.backend.explained(error):
                    raise explained from error
                # The error says only that a server did not start; the testbed says which and why.
                # Remove faulty nodes and try again.
                if not (faults := _remove_faulty(run)):
                    raise
                note_failed(faults)


def _applied(run: Run, planned: Result | None) -> Result:
    """Let the engine apply the plan.

    gpubed's own resources record that nodes are about to be changed. Pulumi's plugins do not, so
    this function does, and undoes it if no step of theirs was begun.
    """
    began = False

    def on_event(event: ResourceEvent | LogEvent) -> None:
        nonlocal began
        if isinstance(event, ResourceEvent) and event.op not in _NOT_A_CHANGE:
            began |= removals.is_of_nodes(event)
        emit(event)

    native = planned and run.testbed.backend.native and removals.changes_nodes(planned)
    noted = native and allocations.note_change(run.paths)
    try:
        return run.stack.up(on_event)
    except BaseException:
        if noted and not began:
            with record.changed(run.paths) as recorded:
                recorded.unfinished = ""
        raise


def _look_ahead(run: Run, planned: Result | None) -> Result | None:
    """Ask for approval of losses, or refuse the run; return the preview, None without a state."""
    stack, testbed, plan = run.stack, run.testbed, run.plan
    if planned is None and stack.has_resources():
        planned = stack.preview(discard_steps)
    makes = planned is not None and removals.makes_nodes(planned)
    if makes and testbed.backend.vacates:
        lost_state.refuse_conflict(stack, run.testbeds, plan)
    steps = planned.steps if planned else ()
    uuid = None if planned else record.uuid(stack.paths)
    existing = lost_state.existing_of(uuid, testbed) if uuid else None
    left = shared_storage.left_behind(stack.paths, plan, steps, existing)
    lost = removals.lost(planned, left) if planned else left
    # A plugin that fails to make nodes leaves parts of them behind. A refusal of the testbed while
    # nodes are being added would leave the cluster unfinished.
    asks = makes and (testbed.backend.native or testbed.backend.asks_before_growth)
    if (lost or asks) and (findings := testbed.refusals(plan)):
        why = "\n  ".join(finding.message for finding in findings)
        raise Refused(f"nothing was changed, since {why}", findings[0].fix)
    if lost:
        run.approve(lost)
    return planned


def _remove_faulty(run: Run) -> list[Fault]:
    """Remove nodes that did not start, and which a plugin records as if they had."""
    faults: list[Fault] = []
    with suppress(GpubedError):
        uuid = audits.uuid_of(run.stack)
        # Only this cluster's nodes, not those of another cluster with the same name.
        faults = [fault for fault in run.testbed.faults() if fault.thing.uuid == uuid]
    for fault in faults:
        run.testbed.remove(fault.thing)
    if faults:
        _refresh(run)
    return faults


def _refresh(run: Run) -> None:
    """Refresh the state from the testbed.

    Asks about missing volumes first: a refresh removes them from the state, and `up` would then
    make empty ones without a question.
    """
    if gone := removals.gone(audits.missing_data(run.stack, run.testbeds)):
        run.approve(gone)
    run.testbeds.require_refreshable()
    run.stack.refresh(emit)


def _remove_leftovers(run: Run) -> None:
    """Remove resources that a killed run left.

    Asks about nodes first, because a state restored from a backup may lack nodes in use.
    """
    left = audits.unrecorded(run.stack, run.testbeds)
    why = "it is not in the state, so a killed run may have been making it"
    if nodes := [f"{thing}: {why}" for thing in left if thing.node]:
        run.approve(nodes)
    if removed := run.testbeds.remove(left):
        progress.note(f"removed resources of a killed run: {', '.join(removed)}")


def changed(result: Result) -> bool:
    """Return whether a run changed anything, or a preview would."""
    return any(count for op, count in result.changes.items() if op not in _NOT_A_CHANGE)


def _probe_first(run: Run, *, refresh: bool) -> tuple[Probed | None, Result | None]:
    """Probe the cluster, and refresh the state if something is damaged.

    Returns the cluster and its condition, or None if it could not be probed; and the engine's
    preview, if it was computed meanwhile and still holds.
    """
    paths, stack = run.paths, run.stack
    if not refresh:
        leases.check_not_expired(paths)
    planned, events = None, list[ResourceEvent | LogEvent]()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(probe.before_up, paths, run.plan)
        # Usually nothing is damaged, and the preview computed meanwhile holds. If an earlier run
        # left nodes out, it would not, because the engine does not know that yet.
        if not refresh and not record.read(paths).left_out and stack.has_resources():
            with suppress(GpubedError):  # a later preview reports the error
                planned = stack.preview(events.append)
        probed = future.result()
    damaged = probe.damaged(probed)
    if damaged:
        if not refresh:
            probe.require_known_keys(*damaged)
        for line in damaged[1].words:
            progress.note(line)
    if refresh or damaged:
        _refresh(run)
        return probed, None  # the state has changed
    for event in events if planned else ():
        discard_steps(event)
    return probed, planned


def _refuse(error: type[GpubedError], findings: Sequence[Finding]) -> None:
    """Raise an error with the findings that are not ok, if there are any."""
    failed = [finding for finding in findings if not finding.ok]
    if failed:
        first, *others = failed
        rest = [
            f"\n  {each.message}" + (f"\n    → {each.fix}" if each.fix != first.fix else "")
            for each in others
        ]
        raise error(first.message + "".join(rest), first.fix)


@dataclass(frozen=True)
class Preview:
    """What `up` would do."""

    plan: ClusterPlan
    steps: Result
    damage: Sequence[str]  # damage that `up` would repair, a sentence each
    roles: Due  # the nodes on which roles would be applied, by role
    lost: Sequence[str]  # losses that `up` would ask about, a sentence each
    refused: Sequence[Finding]  # the testbed's refusals; empty if nothing would be lost
    notes: Sequence[str]


def preview(paths: ClusterPaths, engine: EngineName) -> Preview:
    """Compute what `up` would do, without changes.

    Raises `Locked` if another run is changing the cluster.
    """
    plan = load_plan(paths.spec)
    owners_variables.require_readable(paths)
    testbed = registry.bound(plan.backend, paths)
    testbed.backend.require_engine(engine)
    runlock.require_free(paths.state)
    paths.prepare()
    stack = Stack(paths, engine)
    audits.testbeds(stack, testbed).require_same(testbed)
    damaged = probe.damaged(probe.before_up(paths, plan))
    audits.remember(stack)
    gone = list[str]()
    stale = damaged is not None or record.read(paths).killed
    if stale:
        testbeds = audits.testbeds(stack, testbed)
        gone = removals.gone(audits.missing_data(stack, testbeds))
        testbeds.require_refreshable()
    planned = stack.preview(emit, refresh=stale)
    existing, abandoned, notes = _recovery(stack, testbed, plan)
    steps = planned.steps if stack.has_resources() else ()  # without a state, all would seem new
    left = shared_storage.left_behind(paths, plan, steps, existing)
    lost = removals.lost(planned, left)
    refused = testbed.refusals(plan) if lost else []
    found = damaged[1] if damaged else Condition({})
    runlock.require_free(paths.state)  # another run may have begun meanwhile
    roles: Due = {}
    if plan.spec.configure and plan.spec.backend.lends_nodes:
        allocation = None
        with suppress(GpubedError):
            allocation = allocations.load(paths.allocation)
        roles = due.foreseen(
            paths,
            plan,
            allocation,
            anew=[step.name for step in planned.steps if step.op in ("create", "replace")],
            strange=found.in_state(probe.UNRECOGNIZED),
            cut=found.in_state(*probe.BARE),
            broken=probe.unserved(plan, found),
        )
    return Preview(plan, planned, found.words, roles, [*abandoned, *gone, *lost], refused, notes)


def _recovery(
    stack: Stack, testbed: Testbed, plan: ClusterPlan
) -> tuple[list[Existing] | None, list[str], list[str]]:
    """Return what `up` would do with the resources of a lost state.

    Returns the existing resources, or None if the testbed was not asked; a sentence for each that
    `up` would abandon; and sentences about those that it would take over, or why it would stop.
    """
    uuid = record.uuid(stack.paths)
    if uuid is None and (message := lost_state.renamed(stack.paths)):
        return None, [], [message]
    if uuid is None or stack.has_resources() or stack.interrupted():
        return None, [], []
    try:
        existing = lost_state.existing_of(uuid, testbed)
        lost = lost_state.abandoned(existing, testbed, plan)
    except GpubedError as error:
        return None, [], [f"`up` would stop: {error.message}"]
    message = lost_state.taken_over(existing, plan)
    return existing, lost, [message] if message else []

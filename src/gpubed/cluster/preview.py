"""`gpubed plan`: what `up` would do."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from gpubed.cluster import audit as audits
from gpubed.cluster import condition, costs, lost_state
from gpubed.cluster.condition import Condition
from gpubed.cluster.events import emit
from gpubed.configuration import due, owners_variables, served_folder
from gpubed.configuration.due import Due
from gpubed.core import record, runlock
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.engines.embedded import Result
from gpubed.engines.stack import EngineName, Stack
from gpubed.nodes import allocation as allocations
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds import registry
from gpubed.testbeds.base import Existing, Finding, Testbed
from gpubed.testbeds.specification import load_plan


@dataclass(frozen=True)
class Preview:
    """What `up` would do."""

    plan: ClusterPlan
    steps: Result
    damage: Sequence[str]  # damage that `up` would repair, a sentence each
    roles: Due  # the nodes on which roles would be applied, by role
    lost: Sequence[str]  # what `up` would ask about, a sentence each
    # What the testbed would refuse; asked only if something would be lost.
    refused: Sequence[Finding]
    notes: Sequence[str]


def preview(paths: ClusterPaths, engine: EngineName) -> Preview:
    """Compute what `up` would do; nothing is changed.

    Raises `Locked` if another run is changing the cluster.
    """
    plan = load_plan(paths.spec)
    owners_variables.require_readable(paths)
    testbed = registry.bound(plan.backend, paths)
    testbed.backend.require_engine(engine)
    runlock.require_free(paths.state)
    paths.project.prepare()
    stack = Stack(paths, engine)
    audits.testbeds(stack, testbed).require_same(testbed)
    seen = condition.damaged(condition.before_up(paths, plan))
    audits.remember(stack)
    gone = list[str]()
    if seen:
        asked = audits.testbeds(stack, testbed)
        gone = costs.gone(audits.missing_data(stack, asked))
        asked.require_refreshable()
    planned = stack.preview(emit, refresh=seen is not None)
    there, given_up, notes = _known_again(stack, testbed, plan)
    steps = planned.steps if stack.has_resources() else ()  # without a state, all would seem new
    left = served_folder.left_behind(paths, plan, steps, there)
    lost = costs.lost(planned, left)
    refused = testbed.refusals(plan) if lost else []
    found = seen[1] if seen else None
    runlock.require_free(paths.state)  # another run may have begun meanwhile
    configures = plan.spec.configure and plan.spec.backend.lends_nodes
    return Preview(
        plan,
        planned,
        found.words if found else [],
        _foreseen(paths, plan, planned, found) if configures else {},
        [*given_up, *gone, *lost],
        refused,
        notes,
    )


def _known_again(
    stack: Stack, testbed: Testbed, plan: ClusterPlan
) -> tuple[list[Existing] | None, list[str], list[str]]:
    """Return what `up` would do with resources that a lost state knew.

    Returns the existing resources, or None if the testbed was not asked; those that `up` would give
    up; and those that it would take over, or why it would stop.
    """
    uuid = record.uuid(stack.paths)
    if uuid is None and (said := lost_state.renamed(stack.paths)):
        return None, [], [said]
    if uuid is None or stack.has_resources() or stack.interrupted():
        return None, [], []
    try:
        found = lost_state.known_again(uuid, testbed)
        lost = lost_state.given_up(found, testbed, plan)
    except GpubedError as error:
        return None, [], [f"`up` would stop: {error.message}"]
    said = lost_state.taken_over(found, plan)
    return found, lost, [said] if said else []


def _foreseen(
    paths: ClusterPaths, plan: ClusterPlan, planned: Result, found: Condition | None
) -> Due:
    allocation = None
    with suppress(GpubedError):
        allocation = allocations.load(paths.allocation)
    return due.foreseen(
        paths,
        plan,
        allocation,
        anew=[step.name for step in planned.steps if step.op in ("create", "replace")],
        strange=condition.in_state(found, condition.UNRECOGNIZED) if found else (),
        cut=condition.unconfigured(found) if found else (),
        broken=condition.unserved(plan, found) if found else None,
    )

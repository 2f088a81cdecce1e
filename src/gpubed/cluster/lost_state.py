"""Protects what a lost state knew from being made twice or removed without approval."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpubed.cluster import audit as audits
from gpubed.core import progress, record
from gpubed.core.errors import GpubedError, PrerequisiteMissing, Refused, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.engines.stack import Stack
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.base import Existing, Testbed
from gpubed.testbeds.made_on import Testbeds

Approve = Callable[[Sequence[str]], None]
"""Asks whether a run may go on, given what it costs, a line each; raises when it may not."""


def mind(stack: Stack, testbed: Testbed, plan: ClusterPlan, approve: Approve) -> None:
    """Ask before what a lost state knew is given up, or a second cluster of the name is made.

    Raises `Refused` if the testbed does not list its resources.

    Args:
        stack: The cluster's stack.
        testbed: The testbed that the specification names.
        plan: The specification's plan.
        approve: Called with what would be lost.
    """
    kept, has_state = record.uuid(stack.paths), stack.has_resources()
    if kept and not has_state and not stack.interrupted():
        _mind_lost(kept, testbed, plan, approve)
    elif not kept and not has_state:
        if said := renamed(stack.paths):
            progress.emit("note", message=said)
        _mind_another(testbed, approve)


def _mind_lost(uuid: str, testbed: Testbed, plan: ClusterPlan, approve: Approve) -> None:
    found = known_again(uuid, testbed)
    if lost := given_up(found, testbed, plan):
        approve(lost)
    if said := taken_over(found, plan):
        progress.emit("note", message=said)


def given_up(found: Sequence[Existing], testbed: Testbed, plan: ClusterPlan) -> list[str]:
    """Return what `up` gives up of the resources of a lost state, a sentence each."""
    paths, backend = testbed.paths, testbed.backend
    there = [thing for thing in found if not thing.data]
    if there and backend.native:
        raise UsageError(
            f"the state of {paths.name} is lost, what Pulumi's plugin has made cannot be taken "
            f"into a new one, and it is there: {', '.join(map(str, there))}",
            f"put a state back (.gpubed/pulumi/.pulumi/backups), or give all that back and ask for "
            f"it anew: gpubed audit {paths.name} --remove",
        )
    names = {node.name for node in plan.nodes}
    _refuse_to_vacate(paths, [thing for thing in there if thing.node in names], plan)
    _refuse_to_move(paths, there, plan)
    lost = [
        f"{thing}: what is on its own disk is lost: the state that knew it is, and the "
        "specification has no such node"
        for thing in there
        if thing.node and thing.node not in names
    ]
    lost += [
        f"{thing}: the specification makes {thing.heir} of its host, and the state that knew it is "
        "lost; what is on its own disk stays there"
        for thing in there
        if thing.heir
    ]
    unused = [thing for thing in found if thing.data and not _has_volume(plan)]
    # A plugin always makes new volumes and adopts none.
    why = "no state knows it by now" if backend.native else "the specification has no volume"
    return lost + [
        f"{thing}: {why}: what is on it stays there, unused, until "
        f"gpubed down {paths.name} removes it"
        for thing in unused
    ]


def known_again(uuid: str, testbed: Testbed) -> list[Existing]:
    """Return the existing resources with a cluster's UUID, without running jobs.

    Raises `Refused` if the testbed does not list its resources.
    """
    found = _listed(testbed)
    return [thing for thing in found if thing.uuid == uuid and not thing.transient]


def of_lost(testbed: Testbed) -> list[Existing] | None:
    """Return the existing resources of a cluster whose state is lost; None if it has no UUID.

    Raises `Refused` if the testbed does not list its resources.
    """
    uuid = record.uuid(testbed.paths)
    return known_again(uuid, testbed) if uuid else None


def taken_over(found: Sequence[Existing], plan: ClusterPlan) -> str:
    """Say which resources of a lost state `up` takes over; empty if none."""
    names = {node.name for node in plan.nodes}
    there = [thing for thing in found if not thing.heir]
    if not _has_volume(plan):
        there = [thing for thing in there if not thing.data]
    stays = [str(thing) for thing in there if not thing.node or thing.node in names]
    if not stays:
        return ""
    were = "was there already and is" if len(stays) == 1 else "were there already and are"
    return f"{', '.join(stays)} {were} taken over"


def renamed(paths: ClusterPaths) -> str:
    """Say which clusters lost their specification, before a new cluster is made; else empty.

    A cluster is known by its folder's name, so that a renamed one is new and without its data.
    """
    project = paths.project
    known = (project.cluster(name) for name in project.known())
    lost = [each.name for each in known if record.was_made(each) and not each.spec.exists()]
    if not lost or record.was_made(paths):
        return ""
    return (
        f"{', '.join(lost)}: made here, and without a specification now; if its folder was "
        f"renamed, {paths.name} is a new cluster without its data: put inventories/{lost[0]} back"
    )


def _refuse_to_move(paths: ClusterPaths, there: Sequence[Existing], plan: ClusterPlan) -> None:
    """Refuse to give an existing node another address: it would be replaced."""
    planned = {node.name: str(node.control_address) for node in plan.nodes}
    for thing in there:
        address = planned.get(thing.node, thing.address)
        if thing.address and address != thing.address:
            raise UsageError(
                f"{thing} has the address {thing.address}, the specification gives it {address}, "
                f"and the state that knew it is lost: it would be replaced, with what is on its "
                "own disk",
                f"make inventories/{paths.name}/cluster.yml what it was; or give the nodes up, "
                f"not the shared data: gpubed audit {paths.name} --remove",
            )


def _has_volume(plan: ClusterPlan) -> bool:
    return plan.spec.storage.shared.provider == "volume"


def _listed(testbed: Testbed) -> list[Existing]:
    cluster = testbed.paths.name
    try:
        return testbed.existing()
    except PrerequisiteMissing:
        raise
    except GpubedError as error:
        raise Refused(
            f"no state says what {cluster} has, and the testbed does not say it either, so that "
            f"nothing was made: {error.message}",
            error.hint or f"gpubed doctor {cluster}",
        ) from error


def spare(stack: Stack, asked: Testbeds, plan: ClusterPlan) -> None:
    """Refuse a plan that gives a node the address of an existing node outside the state."""
    there = audits.unrecorded(stack, asked)
    _refuse_to_vacate(stack.paths, there, plan)


def _refuse_to_vacate(paths: ClusterPaths, there: Sequence[Existing], plan: ClusterPlan) -> None:
    given = {str(node.control_address): node.name for node in plan.nodes}
    for thing in there:
        heir = given.get(thing.address)
        if heir and heir != thing.node:
            raise UsageError(
                f"{thing} has the address {thing.address}, which the specification now gives to "
                f"{heir}: it would be removed, with what is on its own disk",
                f"make inventories/{paths.name}/cluster.yml what it was; or give the nodes up, "
                f"not the shared data: gpubed audit {paths.name} --remove",
            )


def _mind_another(testbed: Testbed, approve: Approve) -> None:
    paths = testbed.paths
    if there := [thing for thing in _listed(testbed) if not thing.transient]:
        uuids = sorted({thing.uuid for thing in there})
        costs = [
            f"there is another {paths.name} (uuid {', '.join(uuids)}), which this project "
            f"knows nothing of: {', '.join(map(str, there))}",
            f"gpubed audit {paths.name} tells how to take it over; to go on makes a second one",
        ]
        try:
            approve(costs)
        except UsageError as error:
            raise UsageError(error.message, f"gpubed audit {paths.name}") from None

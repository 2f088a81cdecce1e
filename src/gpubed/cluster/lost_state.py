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
from gpubed.testbeds.history import Testbeds

Approve = Callable[[Sequence[str]], None]
"""Asks whether a run may go on, given what it costs, a line each; raises when it may not."""


def require_approval(stack: Stack, testbed: Testbed, plan: ClusterPlan, approve: Approve) -> None:
    """Ask before what a lost state knew is given up, or a second cluster of the name is made.

    Raises `Refused` if the testbed does not list its resources.
    """
    paths, kept = stack.paths, record.uuid(stack.paths)
    if stack.has_resources() or (kept and stack.interrupted()):
        return
    if kept:
        found = known_again(kept, testbed)
        if lost := given_up(found, testbed, plan):
            approve(lost)
        said = taken_over(found, plan)
    else:
        said = renamed(paths)
    if said:
        progress.note(said)
    there = [] if kept else [thing for thing in _listed(testbed) if not thing.transient]
    if there:
        uuids = ", ".join(sorted({thing.uuid for thing in there}))
        costs = [
            f"there is another {paths.name} (uuid {uuids}), which this project knows nothing of: "
            f"{', '.join(map(str, there))}",
            f"gpubed audit {paths.name} tells how to take it over; to go on makes a second one",
        ]
        try:
            approve(costs)
        except UsageError as error:
            raise UsageError(error.message, f"gpubed audit {paths.name}") from None


def given_up(found: Sequence[Existing], testbed: Testbed, plan: ClusterPlan) -> list[str]:
    """Return what `up` gives up of the resources of a lost state, a sentence each."""
    name, backend = testbed.paths.name, testbed.backend
    there = [thing for thing in found if not thing.data]
    if there and backend.native:
        raise UsageError(
            f"the state of {name} is lost, what Pulumi's plugin has made cannot be taken into a "
            f"new one, and it is there: {', '.join(map(str, there))}",
            f"put a state back (.gpubed/pulumi/.pulumi/backups), or give all that back and ask for "
            f"it anew: gpubed audit {name} --remove",
        )
    names = {node.name for node in plan.nodes}
    _refuse_to_move(testbed.paths, [thing for thing in there if thing.node in names], plan)
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
    # A plugin always makes new volumes and adopts none.
    why = "no state knows it by now" if backend.native else "the specification has no volume"
    return lost + [
        f"{thing}: {why}: what is on it stays there, unused, until gpubed down {name} removes it"
        for thing in found
        if thing.data and not _has_volume(plan)
    ]


def known_again(uuid: str, testbed: Testbed) -> list[Existing]:
    """Return the existing resources with a cluster's UUID, without running jobs.

    Raises `Refused` if the testbed does not list its resources.
    """
    return [e for e in _listed(testbed) if e.uuid == uuid and not e.transient]


def of_lost(testbed: Testbed) -> list[Existing] | None:
    """Return the `known_again` of a cluster whose state is lost; None if it has no UUID."""
    uuid = record.uuid(testbed.paths)
    return known_again(uuid, testbed) if uuid else None


def taken_over(found: Sequence[Existing], plan: ClusterPlan) -> str:
    """Say which resources of a lost state `up` takes over; empty if none."""
    names = {node.name for node in plan.nodes}
    there = [e for e in found if not (e.heir or (e.data and not _has_volume(plan)))]
    stays = ", ".join(str(thing) for thing in there if not thing.node or thing.node in names)
    return f"already there, and taken over: {stays}" if stays else ""


def renamed(paths: ClusterPaths) -> str:
    """Say which clusters lost their specification, before a new cluster is made; else empty.

    A cluster is known by its folder's name, so that a renamed one is new and without its data.
    """
    known = (paths.project.cluster(name) for name in paths.project.known())
    lost = [each.name for each in known if record.was_made(each) and not each.spec.exists()]
    if not lost or record.was_made(paths):
        return ""
    return (
        f"{', '.join(lost)}: made here, and without a specification now; if its folder was "
        f"renamed, {paths.name} is a new cluster without its data: put inventories/{lost[0]} back"
    )


def refuse_conflict(stack: Stack, asked: Testbeds, plan: ClusterPlan) -> None:
    """Refuse a plan that gives a node the address of an existing node outside the state."""
    given = {str(node.control_address) for node in plan.nodes}
    there = [e for e in audits.unrecorded(stack, asked) if e.address in given]
    _refuse_to_move(stack.paths, there, plan)


def _refuse_to_move(paths: ClusterPaths, there: Sequence[Existing], plan: ClusterPlan) -> None:
    """Refuse to give an existing node another address, or its address to another node."""
    planned = {node.name: str(node.control_address) for node in plan.nodes}
    heirs = {address: name for name, address in planned.items()}
    for thing in there:
        heir, address = heirs.get(thing.address), planned.get(thing.node, thing.address)
        gives = f"gives it {address}" if address != thing.address else ""
        gives = f"now gives to {heir}" if heir and heir != thing.node else gives
        if thing.address and gives:
            raise UsageError(
                f"{thing} has the address {thing.address}, which the specification {gives}: it "
                "would go, with what is on its own disk",
                f"make inventories/{paths.name}/cluster.yml what it was; or give the nodes up, "
                f"not the shared data: gpubed audit {paths.name} --remove",
            )


def _has_volume(plan: ClusterPlan) -> bool:
    return plan.spec.storage.shared.provider == "volume"


def _listed(testbed: Testbed) -> list[Existing]:
    try:
        return testbed.existing()
    except PrerequisiteMissing:
        raise
    except GpubedError as error:
        raise Refused(
            f"no state says what {testbed.paths.name} has, and the testbed does not say it either, "
            f"so that nothing was made: {error.message}",
            error.hint or f"gpubed doctor {testbed.paths.name}",
        ) from error

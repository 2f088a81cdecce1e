"""Protects the resources of a lost state from being made twice or removed without approval."""

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
"""Asks whether a run may go on, given the losses, a line each; raises `UsageError` if not."""


def require_approval(stack: Stack, testbed: Testbed, plan: ClusterPlan, approve: Approve) -> None:
    """Ask before resources of a lost state are abandoned, or a second cluster of a name is made.

    Raises `Refused` if the testbed does not list its resources.
    """
    paths, uuid = stack.paths, record.uuid(stack.paths)
    if stack.has_resources() or (uuid and stack.interrupted()):
        return
    if uuid:
        existing = existing_of(uuid, testbed)
        if lost := abandoned(existing, testbed, plan):
            approve(lost)
        if message := taken_over(existing, plan):
            progress.note(message)
        return
    if message := renamed(paths):
        progress.note(message)
    if others := [thing for thing in _listed(testbed) if not thing.transient]:
        uuids = ", ".join(sorted({thing.uuid for thing in others}))
        costs = [
            f"there is another {paths.name} (uuid {uuids}), which this project does not know: "
            f"{', '.join(map(str, others))}",
            f"gpubed audit {paths.name} tells how to take it over; to go on makes a second one",
        ]
        try:
            approve(costs)
        except UsageError as error:
            raise UsageError(error.message, f"gpubed audit {paths.name}") from None


def abandoned(existing: Sequence[Existing], testbed: Testbed, plan: ClusterPlan) -> list[str]:
    """Return a sentence for each resource of a lost state that `up` abandons.

    Raises `UsageError` if `up` cannot take resources over: those of Pulumi's plugins, and nodes
    whose address changes.
    """
    name, backend = testbed.paths.name, testbed.backend
    things = [thing for thing in existing if not thing.data]
    if things and backend.native:
        raise UsageError(
            f"the state of {name} is lost, and a new state cannot take over the existing resources "
            f"of Pulumi's plugin: {', '.join(map(str, things))}",
            "restore a state from .gpubed/pulumi/.pulumi/backups, or remove the resources and make "
            f"new ones: gpubed audit {name} --remove",
        )
    names = {node.name for node in plan.nodes}
    _refuse_to_move(testbed.paths, [thing for thing in things if thing.node in names], plan)
    lost = [
        f"{thing}: what is on its own disk is lost, because the state is lost and the "
        "specification has no such node"
        for thing in things
        if thing.node and thing.node not in names
    ]
    lost += [
        f"{thing}: the specification makes {thing.heir} of its host, and the state is lost; what "
        "is on its own disk stays there"
        for thing in things
        if thing.heir
    ]
    # A plugin always makes new volumes and adopts none.
    why = "the state is lost" if backend.native else "the specification has no volume"
    return lost + [
        f"{thing}: {why}: what is on it stays there, unused, until gpubed down {name} removes it"
        for thing in existing
        if thing.data and not _has_volume(plan)
    ]


def existing_of(uuid: str, testbed: Testbed) -> list[Existing]:
    """Return the existing resources with a cluster's UUID, without running jobs.

    Raises `Refused` if the testbed does not list its resources.
    """
    return [e for e in _listed(testbed) if e.uuid == uuid and not e.transient]


def taken_over(existing: Sequence[Existing], plan: ClusterPlan) -> str:
    """Return a sentence about the resources of a lost state that `up` takes over; empty if none."""
    names = {node.name for node in plan.nodes}
    usable = [e for e in existing if not (e.heir or (e.data and not _has_volume(plan)))]
    taken = ", ".join(str(thing) for thing in usable if not thing.node or thing.node in names)
    return f"already there, and taken over: {taken}" if taken else ""


def renamed(paths: ClusterPaths) -> str:
    """Return a sentence about clusters without a specification if `paths` is a new cluster.

    A cluster's name is that of its folder, so a renamed folder is a new cluster without data.
    """
    clusters = (paths.project.cluster(name) for name in paths.project.known())
    lost = [each.name for each in clusters if record.was_made(each) and not each.spec.exists()]
    if not lost or record.was_made(paths):
        return ""
    return (
        f"{', '.join(lost)}: made here, and without a specification now; if the folder was "
        f"renamed, {paths.name} is a new cluster without its data: put inventories/{lost[0]} back"
    )


def refuse_conflict(stack: Stack, testbeds: Testbeds, plan: ClusterPlan) -> None:
    """Refuse a plan that gives a node the address of an existing node outside the state."""
    planned = {str(node.control_address) for node in plan.nodes}
    things = [e for e in audits.unrecorded(stack, testbeds) if e.address in planned]
    _refuse_to_move(stack.paths, things, plan)


def _refuse_to_move(paths: ClusterPaths, things: Sequence[Existing], plan: ClusterPlan) -> None:
    """Refuse to give an existing node another address, or its address to another node."""
    planned = {node.name: str(node.control_address) for node in plan.nodes}
    heirs = {address: name for name, address in planned.items()}
    for thing in things:
        heir, address = heirs.get(thing.address), planned.get(thing.node, thing.address)
        change = f"changes to {address}" if address != thing.address else ""
        change = f"now gives to {heir}" if heir and heir != thing.node else change
        if thing.address and change:
            raise UsageError(
                f"{thing} has the address {thing.address}, which the specification {change}: the "
                "node would be removed with its own disk",
                f"make inventories/{paths.name}/cluster.yml what it was; or give up the nodes, "
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
            f"the state of {testbed.paths.name} is missing, and the testbed does not list its "
            f"resources, so nothing was made: {error.message}",
            error.hint or f"gpubed doctor {testbed.paths.name}",
        ) from error

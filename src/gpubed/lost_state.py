"""A state that was lost: what it knew of is not made a second time, nor removed unasked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from gpubed import audit as audits
from gpubed import identities
from gpubed.backends.base import Backend, Existing
from gpubed.errors import GpubedError, UsageError
from gpubed.paths import ClusterPaths
from gpubed.plan import ClusterPlan
from gpubed.stack import Stack

Approve = Callable[[Sequence[str]], None]
"""Asks whether a run may go on, given what it costs, a line each; raises when it may not."""


def mind(stack: Stack, backend: Backend, wanted: ClusterPlan, approve: Approve) -> None:
    """See to it that the cluster's UUID is kept, and that none is made in another's place.

    Args:
        stack: The cluster's.
        backend: Where the specification wants it.
        wanted: What the specification wants.
        approve: Asks about what would be lost.

    Raises:
        UsageError: It cannot go on without a loss, or that was not approved.
    """
    kept, has_state = identities.kept(stack.cluster), stack.has_resources()
    if kept and not has_state and not stack.interrupted():
        _mind_lost(stack.cluster, kept, backend, wanted, approve)
    elif not kept and not has_state:
        _mind_another(stack.cluster, backend, approve)
    elif not kept and (uuid := audits.owner(stack)[0]):
        # Former versions kept it in the state alone, which may have it made anew.
        identities.keep(stack.cluster, uuid)


def _mind_lost(
    cluster: ClusterPaths, uuid: str, backend: Backend, wanted: ClusterPlan, approve: Approve
) -> None:
    """Keep a state that was lost from costing the nodes that it knew of."""
    there: list[Existing] = []
    with suppress(GpubedError):  # a testbed that does not answer says so to whoever goes on
        there = [t for t in backend.existing(cluster.name) if t.uuid == uuid]
    there = [thing for thing in there if not (thing.data or thing.transient)]
    if there and backend.native:
        raise UsageError(
            f"the state of {cluster.name} is lost, what Pulumi's plugin has made cannot be taken "
            f"into a new one, and it is there: {', '.join(map(str, there))}",
            f"put a state back (.gpubed/pulumi/.pulumi/backups), or give all that back and ask for "
            f"it anew: gpubed audit {cluster.name} --remove",
        )
    names = {node.name for node in wanted.nodes}
    if gone := [str(thing) for thing in there if thing.node and thing.node not in names]:
        approve(
            [
                f"{name}: what is on its own disk is lost: the state that knew it is, and the "
                "specification has no such node"
                for name in gone
            ]
        )


def _mind_another(cluster: ClusterPaths, backend: Backend, approve: Approve) -> None:
    """Ask before a second cluster of the name is made: the first may have lost its state."""
    there: list[Existing] = []
    with suppress(GpubedError):  # of what we may not see, nothing can be lost by us
        there = [thing for thing in backend.existing(cluster.name) if not thing.transient]
    if there:
        uuids = sorted({thing.uuid for thing in there})
        costs = [
            f"there is another {cluster.name} (uuid {', '.join(uuids)}), which this project "
            f"knows nothing of: {', '.join(map(str, there))}",
            f"gpubed audit {cluster.name} tells how to take it over; to go on makes a second one",
        ]
        try:
            approve(costs)
        except UsageError as error:
            raise UsageError(error.message, f"gpubed audit {cluster.name}") from None

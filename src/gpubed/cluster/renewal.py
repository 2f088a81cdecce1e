"""A look at a lease, as the policy of `cluster.yml` has it: renewed, or its end prepared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from gpubed.cluster import before_end
from gpubed.cluster import lease as leases
from gpubed.cluster.lease import Record
from gpubed.core.errors import GpubedError, Refused
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Allocation
from gpubed.spec.plan import ClusterPlan


@dataclass(frozen=True)
class Looked:
    """What one look did.

    Attributes:
        record: The lease after it.
        asked: Until when more time was asked for; None where that was not due.
        refused: Why the testbed granted none; None where it did.
        prepared: What was done before the end, in words.
        unprepared: Why what is due before the end was not done; it is tried again.
        untold: Why nodes that mind the end do not know of it; they are told at the next look.
    """

    record: Record
    asked: datetime | None = None
    refused: Refused | None = None
    prepared: tuple[str, ...] = ()
    unprepared: GpubedError | None = None
    untold: GpubedError | None = None


def look(paths: ClusterPaths, plan: ClusterPlan, allocation: Allocation) -> Looked:
    """Ask until when a lease lasts, renew it where that is due, and prepare an end that stays.

    Nodes that mind the end are told of it, whoever renewed the lease.

    Raises:
        GpubedError: The testbed does not answer.
    """
    looked = _look(paths, plan, allocation)
    try:
        leases.tell_nodes(paths, plan, allocation)
    except GpubedError as error:
        return replace(looked, untold=error)
    return looked


def _look(paths: ClusterPaths, plan: ClusterPlan, allocation: Allocation) -> Looked:
    policy, refused = plan.spec.lease, None
    record = leases.read(paths, plan, allocation)
    if asked := leases.due(record, policy):
        try:
            record = leases.renew(paths, plan, allocation, asked)
        except Refused as error:
            refused = error
    if not leases.is_ending(record, policy):
        return Looked(record, asked, refused)
    try:
        done = before_end.prepare(paths, plan, allocation)
    except GpubedError as error:
        return Looked(record, asked, refused, unprepared=error)
    return Looked(leases.ended(paths, record), asked, refused, tuple(done))

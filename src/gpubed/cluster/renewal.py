"""A look at a lease, as the policy of `cluster.yml` has it: renewed, or its end prepared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from gpubed.cluster import before_end
from gpubed.cluster import lease as leases
from gpubed.cluster.lease import Record
from gpubed.core.errors import GpubedError, Refused
from gpubed.nodes.cluster import Cluster


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


def look(cluster: Cluster) -> Looked:
    """Ask until when a lease lasts, renew it where that is due, and prepare an end that stays.

    Nodes that mind the end are told of it, whoever renewed the lease.

    Raises:
        GpubedError: The testbed does not answer.
    """
    looked = _look(cluster)
    try:
        leases.tell_nodes(cluster)
    except GpubedError as error:
        return replace(looked, untold=error)
    return looked


def _look(cluster: Cluster) -> Looked:
    policy, refused = cluster.plan.spec.lease, None
    record = leases.read(cluster)
    if asked := leases.due(record, policy):
        try:
            record = leases.renew(cluster, asked)
        except Refused as error:
            refused = error
    if not leases.is_ending(record, policy):
        return Looked(record, asked, refused)
    try:
        done = before_end.prepare(cluster)
    except GpubedError as error:
        return Looked(record, asked, refused, unprepared=error)
    return Looked(leases.ended(cluster.paths, record), asked, refused, tuple(done))

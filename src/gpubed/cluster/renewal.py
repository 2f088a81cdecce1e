"""A look at a lease, as the policy of `cluster.yml` has it: renewed, or its end prepared."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

from gpubed.cluster import before_end
from gpubed.cluster import lease as leases
from gpubed.cluster.lease import Record
from gpubed.core import record as known
from gpubed.core.errors import GpubedError, Refused
from gpubed.core.units import format_seconds
from gpubed.nodes.cluster import Cluster


@dataclass(frozen=True)
class Looked:
    """What one look did.

    Attributes:
        record: The lease after it; as it was known before where the testbed does not answer.
        unasked: Why the testbed did not answer; it is asked again.
        asked: Until when more time was due, and asked for; None where none was.
        refused: Why none was granted; None where it was.
        last: Until when the policy renews it at most, in words; empty while that is far.
        prepared: What was done before the end, in words.
        unprepared: Why what is due before the end was not done; it is tried again.
        untold: Why nodes that mind the end do not know of it; they are told at the next look.
    """

    record: Record
    unasked: GpubedError | None = None
    asked: datetime | None = None
    refused: GpubedError | None = None
    last: str = ""
    prepared: tuple[str, ...] = ()
    unprepared: GpubedError | None = None
    untold: GpubedError | None = None


def look(cluster: Cluster) -> Looked:
    """Ask until when a lease lasts, renew it where that is due, and prepare an end that stays.

    Nodes that mind the end are told of it, whoever renewed the lease. A testbed that does not
    answer holds up neither: what it said last is known.
    """
    looked = _prepared(cluster, _asked(cluster))
    try:
        leases.tell_nodes(cluster, answer=None if looked.unasked else looked.record)
    except GpubedError as error:
        return replace(looked, untold=error)
    return looked


def _asked(cluster: Cluster) -> Looked:
    try:
        record = leases.read(cluster)
    except GpubedError as error:
        return Looked(leases.known(cluster.paths), unasked=error)
    looked = Looked(record, last=_last(cluster, record))
    asked = leases.due(record, cluster.plan.spec.lease)
    if asked is None:
        return looked
    if known.read(cluster.paths).removing is not None:
        why = f"a `down` was begun; to have it back: gpubed up {cluster.name}"
        return replace(looked, asked=asked, refused=GpubedError(why))
    try:
        return replace(looked, record=leases.renew(cluster, asked), asked=asked)
    except Refused as error:
        return replace(looked, asked=asked, refused=error)
    except GpubedError as error:
        return replace(looked, unasked=error)


def _last(cluster: Cluster, record: Record) -> str:
    policy = cluster.plan.spec.lease
    if (end := leases.last_end(record, policy)) is None:
        return ""
    why = f"lease.renewal.most is {format_seconds(policy.renewal.most)}"
    return f"it lasts until {leases.local(end)} at most ({why}); more: gpubed renew {cluster.name}"


def _prepared(cluster: Cluster, looked: Looked) -> Looked:
    policy, unasked = cluster.plan.spec.lease, looked.unasked is not None
    if not leases.is_ending(looked.record, policy, unasked=unasked):
        return looked
    try:
        done = before_end.prepare(cluster)
        leases.ended(cluster.paths, looked.record)
        looked = replace(looked, prepared=tuple(done))
    except GpubedError as error:
        looked = replace(looked, unprepared=error)
    # That takes minutes, in which somebody may have renewed it by hand.
    by_now = leases.known(cluster.paths)
    return replace(looked, record=by_now if by_now.granted_until else looked.record)

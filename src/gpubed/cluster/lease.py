"""Leases: until when the testbed keeps a cluster, and how to get more time.

The testbed alone knows the end, so it is asked each time; `lease.json` keeps its
last answer, for when it does not answer and for what was done about the end.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from gpubed.core import files, reading
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.core.reading import Unreadable
from gpubed.core.units import Moment
from gpubed.nodes.allocation import Allocation
from gpubed.spec.plan import ClusterPlan
from gpubed.spec.sections import Lease as Wanted
from gpubed.testbeds import registry

State = Literal["unlimited", "active", "expiring", "expired"]


class Record(BaseModel):
    """What is known of a lease; all times are aware.

    Attributes:
        granted_until: The end that the testbed confirmed; None where nodes do not expire.
        requested_until: The end that was last asked for.
        since: When gpubed first saw the lease; renewals in all are counted from here.
        read_at: When the testbed said so; None before it was ever asked.
        ended_for: The end for which `before_end` has been done.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    granted_until: Moment | None = None
    requested_until: Moment | None = None
    since: Moment | None = None
    read_at: Moment | None = None
    ended_for: Moment | None = None

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the end; negative after it."""
        if self.granted_until is None:
            return None
        return (self.granted_until - now()).total_seconds()

    def state(self, margin_s: float) -> State:
        """Return where in its life the lease is; less than `margin_s` is too little."""
        left = self.remaining_s
        if left is None:
            return "unlimited"
        if left <= 0:
            return "expired"
        return "expiring" if left < margin_s else "active"

    def document(self) -> dict[str, Any]:
        """Return the `lease` of the JSON documents."""
        left = self.remaining_s
        return {
            "granted_until": self.granted_until and self.granted_until.isoformat(),
            "requested_until": self.requested_until and self.requested_until.isoformat(),
            "remaining_s": None if left is None else round(left),
        }


def now() -> datetime:
    """Return the time."""
    return datetime.now(UTC)


def local(moment: datetime) -> str:
    """Write a time in the user's timezone."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M %Z")


def last(cluster: ClusterPaths) -> Record:
    """Return what the testbed said last, as far as it can be read; it is not asked."""
    try:
        return reading.file(cluster.lease).json(Record)
    except Unreadable:
        return Record()


def read(cluster: ClusterPaths, plan: ClusterPlan, allocation: Allocation) -> Record:
    """Ask the testbed for the end of the lease, and keep its answer.

    Raises:
        GpubedError: It does not answer.
    """
    granted = registry.bound(plan.backend, cluster).lease(allocation).granted_until
    return _keep(cluster, last(cluster).model_copy(update={"granted_until": granted}))


def renew(
    cluster: ClusterPaths, plan: ClusterPlan, allocation: Allocation, until: datetime
) -> Record:
    """Ask for a longer lease, and keep what was granted.

    Raises:
        Refused: The testbed said no; the lease is as it was.
    """
    granted = registry.bound(plan.backend, cluster).renew(allocation, until).granted_until
    changed = {"granted_until": granted, "requested_until": until}
    return _keep(cluster, last(cluster).model_copy(update=changed))


def due(record: Record, wanted: Wanted) -> datetime | None:
    """Return until when to renew now by the policy; None when there is nothing to ask for.

    What is due before the end is due where nothing more is granted: that is asked first.
    """
    margin = max(wanted.renewal.margin, wanted.before_end.margin)
    if record.state(margin) != "expiring" or record.since is None:
        return None
    most = record.since + timedelta(seconds=wanted.renewal.most)
    until = min(now() + timedelta(seconds=wanted.duration), most)
    gained = (until - (record.granted_until or until)).total_seconds()
    return until if gained > 60 else None


def is_ending(record: Record, wanted: Wanted) -> bool:
    """Say whether it is time for `before_end`, which is done once for each end."""
    ending = record.state(wanted.before_end.margin) == "expiring"
    return ending and record.ended_for != record.granted_until


def ended(cluster: ClusterPaths, record: Record) -> Record:
    """Keep that `before_end` has been done for the present end."""
    return _keep(cluster, record.model_copy(update={"ended_for": record.granted_until}))


def check_not_expired(cluster: ClusterPaths) -> None:
    """Refuse to work with nodes whose lease is over.

    Raises:
        GpubedError: The lease has ended.
    """
    record = last(cluster)
    if record.granted_until and record.state(0) == "expired":
        raise GpubedError(
            f"the lease of {cluster.name} ended at {local(record.granted_until)}: "
            "the testbed has taken its nodes back",
            f"gpubed up {cluster.name} --refresh   (asks for new nodes)",
        )


def _keep(cluster: ClusterPaths, record: Record) -> Record:
    moment = now()
    kept = record.model_copy(update={"read_at": moment, "since": record.since or moment})
    if kept.granted_until and cluster.state.is_dir():
        files.write(cluster.lease, kept.model_dump_json(indent=2).encode())
    return kept

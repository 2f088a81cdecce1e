"""Leases: when the testbed takes the nodes back, and how to get more time.

Each call asks the testbed; `lease.json` keeps its last answer and what was done before the end. On
a testbed without leases, `lease.on_nodes` gives the cluster an end of its own, which only
`lease.json` has.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from gpubed.configuration import node_lease
from gpubed.core import files, reading, runlock
from gpubed.core.errors import GpubedError, unwritable
from gpubed.core.paths import ClusterPaths
from gpubed.core.reading import Unreadable
from gpubed.core.units import Moment
from gpubed.nodes.allocation import Cluster
from gpubed.spec import backend_config
from gpubed.spec.sections import Lease as Wanted
from gpubed.testbeds import registry

State = Literal["unlimited", "active", "expiring", "expired"]
_GAIN_S = 60.0  # shorter extensions are not asked for
_PATIENCE_S = 300.0  # time for a silent testbed to answer before results are saved
_ANNOUNCED_S = 86400.0  # the last possible end is announced at least this long before
_LOCK_WAIT_S = 10.0  # other processes hold the lock only briefly


class Record(BaseModel):
    """A lease; times are timezone-aware."""

    model_config = ConfigDict(extra="ignore", frozen=True)  # a newer version may keep more

    # The end that the testbed confirmed, or the cluster's own end; None if nodes do not expire.
    granted_until: Moment | None = None
    requested_until: Moment | None = None
    # When gpubed first saw the lease; `lease.renewal.most` counts from then. A lease that is
    # granted after the end of another is a new one.
    since: Moment | None = None
    read_at: Moment | None = None  # when the testbed last answered
    ended_for: Moment | None = None  # the end for which `before_end` was done
    ended_at: Moment | None = None  # when it was done last
    commanded_for: Moment | None = None  # the end for which `before_end.command` was run
    own: bool = False  # whether the end is the cluster's own, on a testbed without leases
    told: dict[str, str] = {}  # the message about the end that each node has, by node id

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the end; negative after it."""
        if self.granted_until is None:
            return None
        return (self.granted_until - now()).total_seconds()

    def state(self, margin_s: float) -> State:
        """Return the state; a lease with less than `margin_s` left is expiring."""
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
    """Return the present time in UTC."""
    return datetime.now(UTC)


def local(moment: datetime) -> str:
    """Format a time in the user's timezone."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M %Z")


def last(paths: ClusterPaths) -> Record:
    """Return the testbed's last answer, or an empty record if there is none.

    Raises `Unreadable` for a damaged file, which must not count as a lease without end.
    """
    name = paths.name
    hint = f"gpubed status {name} asks the testbed again; gpubed renew {name} starts a new record"
    try:
        return reading.file(paths.lease, hint).json(Record)
    except reading.Missing:
        return Record()


def last_known(paths: ClusterPaths) -> Record:
    """Return the testbed's last answer, or an empty record if the file is missing or damaged."""
    try:
        return last(paths)
    except Unreadable:
        return Record()


def read(cluster: Cluster) -> Record:
    """Ask the testbed for the end of the lease, and store its answer."""
    own, granted, former_end = _is_own(cluster), None, last_known(cluster.paths).granted_until
    if not own:
        testbed = registry.bound(cluster.allocation.backend, cluster.paths)
        granted = testbed.lease(cluster.allocation).granted_until
        if granted is None and not cluster.paths.lease.exists():
            return Record()

    def answered(before: Record) -> Record:
        if before.granted_until != former_end:
            return before  # renewed by another process while the testbed was asked
        end = before.granted_until if own and before.own else granted
        if own and end is None:
            end = now() + timedelta(seconds=cluster.plan.spec.lease.duration)
        return _answered(before, end, own=own)

    return _change(cluster.paths, answered, heals=not own, optional=not own)


def renew(cluster: Cluster, until: datetime) -> Record:
    """Ask for a longer lease, and store the granted one; raises `Refused` if there is none."""
    own, granted = _is_own(cluster), None
    if not own:
        testbed = registry.bound(cluster.allocation.backend, cluster.paths)
        granted = testbed.renew(cluster.allocation, until).granted_until

    def renewed(before: Record) -> Record:
        end = granted
        if own:  # like a testbed, never shorten a lease
            end = max(until, before.granted_until or until) if before.own else until
        return _answered(before, end, own=own).model_copy(update={"requested_until": until})

    return _change(cluster.paths, renewed, heals=True, optional=not own)


def tell_nodes(cluster: Cluster, *, anew: bool = False) -> None:
    """Tell the end of the lease to the nodes that act on it.

    With `anew`, also tells nodes that have the same message, because they were set up again.
    """
    record = last(cluster.paths)
    if not (record.told or node_lease.is_on(cluster.plan)):
        return
    left, before = record.remaining_s or 0.0, {} if anew else record.told
    told, failed = node_lease.tell(cluster, record.granted_until, left, before)
    after = _change(cluster.paths, lambda stored: stored.model_copy(update={"told": told}))
    if after.granted_until != record.granted_until:
        tell_nodes(cluster)  # renewed meanwhile; nodes may have got the older end last
    elif failed:
        each = "; ".join(f"{name}: {why}" for name, why in failed.items())
        raise GpubedError(
            f"not all nodes know the end of the lease, and may act on an older one: {each}",
            f"gpubed renew {cluster.name} --auto --once   tells those nodes",
        )


def due(record: Record, wanted: Wanted) -> datetime | None:
    """Return the end that a renewal should request now; None if no renewal is due."""
    if record.state(renewal_margin(wanted)) != "expiring" or record.since is None:
        return None
    most = record.since + timedelta(seconds=wanted.renewal.most)
    until = min(now() + timedelta(seconds=wanted.duration), most)
    gained = (until - (record.granted_until or until)).total_seconds()
    return until if gained > _GAIN_S else None


def last_end(record: Record, wanted: Wanted) -> datetime | None:
    """Return the end after which the policy asks for no more; None if it is far off or past."""
    end, since = record.granted_until, record.since
    if end is None or since is None or end <= now():
        return None
    final = max(end, since + timedelta(seconds=wanted.renewal.most))
    left = (final - now()).total_seconds()
    return final if left < max(_ANNOUNCED_S, renewal_margin(wanted)) else None


def is_ending(record: Record, wanted: Wanted, *, unasked: bool = False) -> bool:
    """Return whether `before_end` is due: at its margin, and twice more closer to the end.

    With `unasked`, waits some minutes longer for a silent testbed to grant more time.
    """
    end, margin, ahead_s = record.granted_until, wanted.before_end.margin, renewal_margin(wanted)
    if unasked:
        margin = min(margin, ahead_s - min(_PATIENCE_S, ahead_s / 2))
    if end is None or record.state(margin) != "expiring":
        return False
    if record.ended_for != end or record.ended_at is None:
        return True
    margin = wanted.before_end.margin
    # Nodes that act on the end ask jobs for a checkpoint at `stop`, which takes a while.
    stop = wanted.on_nodes.stop if wanted.on_nodes else margin
    due_s = (margin, min(margin / 3, stop / 2), min(margin / 10, stop / 4))
    left = record.remaining_s or 0.0
    return record.ended_at < end - timedelta(seconds=min(s for s in due_s if left < s))


def renewal_margin(wanted: Wanted) -> float:
    """Return how many seconds before the end of a lease to ask for its renewal.

    At most half of the duration, or a short lease would be renewed as soon as it is granted.
    """
    margin = min(wanted.renewal.margin, wanted.duration / 2)
    return max(margin, wanted.before_end.margin)


def mark_prepared(paths: ClusterPaths, record: Record) -> None:
    """Record that `before_end` was done for the end in `record`."""
    done = {"ended_for": record.granted_until, "ended_at": now()}
    _change(paths, lambda stored: stored.model_copy(update=done))


def mark_commanded(paths: ClusterPaths, record: Record, wanted: Wanted) -> None:
    """Record that `before_end.command` was run for the end in `record`, if that end is near."""
    if record.state(wanted.before_end.margin) == "expiring":
        done = {"commanded_for": record.granted_until}
        _change(paths, lambda stored: stored.model_copy(update=done))


def check_not_expired(paths: ClusterPaths) -> None:
    """Raise `GpubedError` if the lease has ended."""
    record = last(paths)
    if record.granted_until and record.state(0) == "expired":
        why, hint = "its nodes accept no more jobs", f"gpubed renew {paths.name}"
        if not record.own:
            why = "the testbed has reclaimed its nodes"
            hint = f"gpubed up {paths.name} --refresh   (asks for new nodes)"
        ended = f"the lease of {paths.name} ended at {local(record.granted_until)}"
        raise GpubedError(f"{ended}: {why}", hint)


def _answered(before: Record, end: datetime | None, *, own: bool) -> Record:
    if end is None or own != before.own:  # the record is of another testbed
        before = Record(told=before.told)
    if end is None:
        return before
    after = before.model_copy(update={"granted_until": end, "own": own, "read_at": now()})
    same = before.state(0) == "active" or after.state(0) == "expired"
    return after.model_copy(update={"since": (before.since if same else None) or after.read_at})


def _change(
    paths: ClusterPaths,
    change: Callable[[Record], Record],
    *,
    heals: bool = False,
    optional: bool = False,
) -> Record:
    """Change the record under a lock, and write it.

    `change` must not block, because others wait for the lock. `heals` replaces an unreadable
    record; `optional` ignores a failure to write, because the testbed can be asked again.
    """
    if not paths.state.is_dir():  # the cluster is gone
        return change(Record())
    with runlock.locked(paths.state / "lease.lock", "renew", _LOCK_WAIT_S):
        changed = change(last_known(paths) if heals else last(paths))
        try:
            files.write_if_changed(paths.lease, changed.model_dump_json(indent=2))
        except OSError as error:
            if not optional:
                raise unwritable(error, paths.lease) from None
    return changed


def _is_own(cluster: Cluster) -> bool:
    lender = cluster.allocation.backend
    if cluster.plan.backend != lender:  # the specification names another testbed meanwhile
        return last_known(cluster.paths).own
    return not backend_config.named(lender).leases and node_lease.is_on(cluster.plan)

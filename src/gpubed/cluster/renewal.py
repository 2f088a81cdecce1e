"""One look at a lease by the policy of `cluster.yml`: renews it, or prepares its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from gpubed.cluster import before_end
from gpubed.cluster import lease as leases
from gpubed.cluster.lease import Record
from gpubed.core import record
from gpubed.core.errors import GpubedError, Refused
from gpubed.core.units import format_seconds
from gpubed.nodes.cluster import Cluster


class Said(NamedTuple):
    """A message of a look; a repeated one of the same matter need not be told twice."""

    matter: Literal["lease", "last", "end", "nodes", ""]  # empty for what happens only once
    event: Literal["lease", "unasked"]
    why: str
    outcome: str = ""
    is_fault: bool = False  # whether something failed, and is tried again at the next look


@dataclass
class Looked:
    """A lease after a look, as last known if the testbed does not answer; and the messages."""

    record: Record
    answered: bool = True
    renewed: bool = False
    said: list[Said] = field(default_factory=list)


def look(cluster: Cluster) -> Looked:
    """Ask when a lease ends, renew it if due, prepare its end if that stays, and tell the nodes."""
    looked, policy = _asked(cluster), cluster.plan.spec.lease
    if leases.is_ending(looked.record, policy, unasked=not looked.answered):
        ends = f"it ends {_end(looked.record)}"
        try:
            done = before_end.prepare(cluster)
            leases.ended(cluster.paths, looked.record)
            looked.said.append(Said("", "lease", ends, "; ".join(done)))
        except GpubedError as error:
            looked.said.append(Said("end", "lease", ends, f"not prepared: {error.message}", True))
        # This takes minutes, in which a person may have renewed the lease.
        by_now = leases.known(cluster.paths)
        looked.record = by_now if by_now.granted_until else looked.record
    try:
        leases.tell_nodes(cluster)
    except GpubedError as error:
        looked.said.append(Said("nodes", "lease", "nodes that mind it", error.message, True))
    return looked


def _asked(cluster: Cluster) -> Looked:
    policy = cluster.plan.spec.lease
    looked = Looked(leases.known(cluster.paths))
    try:
        looked.record = leases.read(cluster)
        if last := leases.last_end(looked.record, policy):
            why = f"lease.renewal.most is {format_seconds(policy.renewal.most)}"
            most = f"it lasts until {leases.local(last)} at most ({why})"
            looked.said.append(Said("last", "lease", f"{most}; more: gpubed renew {cluster.name}"))
        if asked := leases.due(looked.record, policy):
            if record.read(cluster.paths).removing is not None:
                raise Refused(f"a `down` was begun; to have it back: gpubed up {cluster.name}")
            looked.record, looked.renewed = leases.renew(cluster, asked), True
            until, granted = f"asked until {leases.local(asked)}", _end(looked.record)
            looked.said.append(Said("lease", "lease", until, f"granted until {granted}"))
    except Refused as error:
        looked.said.append(Said("lease", "lease", f"it ends {_end(looked.record)}", error.message))
    except GpubedError as error:
        looked.answered, why = False, f"the lease: {error.message}"
        looked.said.append(Said("lease", "unasked", why, error.hint or "", True))
    return looked


def _end(record: Record) -> str:
    return leases.local(record.granted_until) if record.granted_until else ""

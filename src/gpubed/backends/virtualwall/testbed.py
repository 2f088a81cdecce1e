"""The operations of a cluster on a GENI testbed."""

from __future__ import annotations

from datetime import datetime
from functools import cache
from urllib.parse import urlsplit

from gpubed.backends.virtualwall import availability, doctor, documents, journal
from gpubed.backends.virtualwall import login as logins
from gpubed.backends.virtualwall.config import Config
from gpubed.backends.virtualwall.connection import Connection, Description, Slice, connect
from gpubed.backends.virtualwall.drivers import NodeDriver, SliceDriver
from gpubed.backends.virtualwall.faults import FORBIDDEN, Answered, NotThere
from gpubed.backends.virtualwall.reservation import Reservation, refusal
from gpubed.backends.virtualwall.slice_inputs import SliceInputs, owner
from gpubed.core import progress, record
from gpubed.core.errors import Refused
from gpubed.nodes.allocation import Allocation, Node
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.base import Existing, Finding, Identity, Lease, Offer, Testbed
from gpubed.testbeds.driver import Driver


class VirtualWallTestbed(Testbed):
    """An aggregate manager, and the authorities that know the user there."""

    @property
    def _config(self) -> Config:
        return Config.of(self.reach.specification.backend)

    def doctor(self, spec: ClusterSpec) -> list[Finding]:
        """Check login, servers, project and bastion."""
        return list(doctor.findings(spec))

    def driver(self, kind: str) -> Driver:
        """Return the driver of a slice or node."""
        if kind == "slice":
            return SliceDriver(self.paths)
        return NodeDriver(self.paths) if kind == "node" else super().driver(kind)

    def describe(self, allocation: Allocation) -> dict[str, str]:
        """Return the state of each node: ready, stopped (not ready) or missing."""
        there = connect(self._config)
        # Callers log in to the nodes next.
        logins.renew_identity(there.config, there.login, self.paths)
        _, found = _look(there, self._slice_of(allocation.uuid, there).urn)
        slivers = found.slivers if found else ()
        words = {s.urn: "ready" if s.operational == "geni_ready" else "stopped" for s in slivers}
        return {node.name: words.get(node.id, "missing") for node in allocation.nodes}

    def restart(self, allocation: Allocation, node: Node) -> None:
        """Have the aggregate restart a node (geni_restart), and wait until it has booted."""
        self._slice_of(allocation.uuid, connect(self._config)).restart(node.id)

    def identity(self) -> Identity:
        """Return the aggregate, authority and project of the cluster's slices."""
        config = self._config
        authority = urlsplit(config.authority.slices).hostname or ""
        called = f"project {config.project} of {authority} at {config.aggregate.urn}"
        id_ = f"{config.aggregate.urn} {authority} {config.project}"
        return Identity(self.backend.canonical_id(id_), called)

    def existing(self) -> list[Existing]:
        """Return the project's slices of the cluster's name that hold nodes.

        Empty slices are left out: authorities do not remove slices, they let them expire.
        """
        there, cluster, known = connect(self._config), self.paths.name, journal.load(self.paths)
        slices = there.of_project()
        owners = {slice_.urn: owner(slice_.description) for slice_ in slices}
        found = {urn: who[1] for urn, who in owners.items() if who and who[0] == cluster}
        # Some authorities keep no description; the journal names the slice.
        if known and known.request and not owners.get(known.slice_urn):
            found[known.slice_urn] = known.uuid
        for slice_ in slices:
            is_called_so = slice_.name == documents.slice_name(cluster, slice_.name[-8:])
            if slice_.is_closed and slice_.urn not in found and is_called_so:
                _pass_over(slice_.name, "the authority tells only its members more than its name")
        mine = known.uuid if known else record.uuid(self.paths)
        return [
            Existing("slice", documents.urn(urn, "slice").name, urn, uuid)
            for urn, uuid in found.items()
            if _holds_nodes(there, urn, is_mine=uuid == mine)
        ]

    def remove(self, thing: Existing) -> None:
        """Release a slice's nodes."""
        wanted = self._named(thing.uuid)
        Reservation(wanted, connect(wanted.testbed), self.paths, urn=thing.id).release()

    def data_within(self) -> list[Existing]:
        """Return the cluster's part of the shared folder that the testbed mounts."""
        return journal.shared(self.paths)

    def remove_data(self) -> list[Existing]:
        """Remove that part through a node."""
        return journal.remove_shared(self.paths)

    def lease(self, allocation: Allocation) -> Lease:
        """Return the end of the slice or of its slivers, whichever is earlier."""
        there = connect(self._config)
        return Lease(_granted(there, self._slice_of(allocation.uuid, there).urn))

    def renew(self, allocation: Allocation, until: datetime) -> Lease:
        """Extend the lease, never shorten it.

        The authority extends the slice first, then the aggregate the slivers. The aggregate reads
        the slice's end from its credential, which is fetched again in between.

        Raises:
            Refused: Neither end moved.
        """
        there = connect(self._config)
        urn = self._slice_of(allocation.uuid, there).urn
        before = _granted(there, urn)
        if until <= before:
            return Lease(before)

        found, reasons = there.find(urn), list[str]()
        if found and found.expires < until:
            reasons.append(refusal(there.renew_slice, urn, until))
            found = there.find(urn)
        end = min(until, found.expires) if found else before
        reasons.append(refusal(there.renew, urn, end))
        after, reasons = _granted(there, urn), [reason for reason in reasons if reason]
        if after <= before and reasons:
            raise Refused(
                f"the lease stays as it was, until {documents.timestamp(before)}: {reasons[-1]}",
                "ask for less time: gpubed renew CLUSTER --for 12h",
            )
        for reason in reasons:
            progress.emit("note", message=f"the lease was renewed by less than wanted: {reason}")
        return Lease(after)

    def resources(self, spec: ClusterSpec) -> list[Offer]:
        """Count machines by hardware type; types with GPUs come first."""
        return availability.offers(Config.of(spec.backend))

    def fits(self, plan: ClusterPlan) -> list[Finding]:
        """Return why the free machines do not suffice for the plan."""
        return availability.refusals(plan, self.paths)

    def refusals(self, plan: ClusterPlan) -> list[Finding]:
        """Refuse another project, as a slice cannot move, and machines that the testbed lacks."""
        known, project = journal.load(self.paths), Config.of(plan.spec.backend).project
        if known is None or known.project in ("", project):
            return availability.refusals(plan, self.paths)
        name = known.slice_urn.rpartition("+")[2]
        message = (
            f"slice {name} is one of project {known.project} until it expires, and names of "
            f"slices are used once: project {project} cannot have it"
        )
        fix = f"gpubed down {plan.cluster}, then up, makes a slice of another name"
        return [Finding("virtualwall.project", False, message, fix)]

    def _slice_of(self, uuid: str, there: Connection) -> Reservation:
        made = Reservation(self._named(uuid), there, self.paths, keeps=False)
        if journal.load(self.paths) is None:
            made.find()
        return made

    def _named(self, uuid: str) -> SliceInputs:
        return SliceInputs(cluster=self.paths.name, uuid=uuid, testbed=self._config)


def _look(there: Connection, urn: str) -> tuple[Slice | None, Description | None]:
    """Return a slice and its slivers; (None, None) if it has ended."""
    found = there.find(urn)
    return (found, there.describe(urn)) if found else (None, None)


def _granted(there: Connection, urn: str) -> datetime:
    found, described = _look(there, urn)
    if found is None:
        raise NotThere(f"slice {urn} has expired: its nodes are gone")
    if described is None:
        raise NotThere(f"slice {urn} has no nodes any more")
    return min(found.expires, described.expires)


def _holds_nodes(there: Connection, urn: str, *, is_mine: bool) -> bool:
    """Return whether a slice holds nodes; False if the aggregate forbids another user's slice."""
    try:
        return _look(there, urn)[1] is not None
    except Answered as error:
        if is_mine or error.code != FORBIDDEN:
            raise
        _pass_over(documents.urn(urn, "slice").name, error.message)
        return False


@cache  # one message per verb
def _pass_over(name: str, why: str) -> None:
    progress.emit("note", message=f"slice {name} of another user is passed over: {why}")

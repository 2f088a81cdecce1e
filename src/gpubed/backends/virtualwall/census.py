"""What the testbed has of a cluster."""

from __future__ import annotations

from functools import cache

from gpubed.backends.virtualwall import bastion, journal, ownership
from gpubed.backends.virtualwall import urn as urns
from gpubed.backends.virtualwall.aggregate import Description
from gpubed.backends.virtualwall.authority import Credential
from gpubed.backends.virtualwall.config import Config
from gpubed.backends.virtualwall.connection import Connection, connect
from gpubed.backends.virtualwall.faults import FORBIDDEN, Answered, Busy
from gpubed.backends.virtualwall.patience import Patience
from gpubed.backends.virtualwall.reservation import Reservation
from gpubed.backends.virtualwall.slice_inputs import Group, SliceInputs, owner
from gpubed.core import progress, record
from gpubed.core.paths import ClusterPaths
from gpubed.core.reading import Unreadable
from gpubed.nodes.allocation import Allocation, Node
from gpubed.testbeds.base import Existing

_LOOK_S = 120.0


def describe(paths: ClusterPaths, config: Config, allocation: Allocation) -> dict[str, str]:
    """Return the state of each node: ready, stopped (not ready) or missing."""
    there, slice_urn = slice_of(paths, config, allocation.uuid)
    # Whoever asks for states goes to the nodes next.
    bastion.renew_identity(there.config, there.login, paths)
    found = _look(there, slice_urn)
    states = {s.urn: s.operational for s in found.slivers} if found else {}
    return {
        node.name: _state(states[node.id]) if node.id in states else "missing"
        for node in allocation.nodes
    }


def restart(paths: ClusterPaths, config: Config, allocation: Allocation, node: Node) -> None:
    """Boot a node again, and wait until the aggregate says what came of it."""
    there, urn = slice_of(paths, config, allocation.uuid)
    wanted = _nothing(paths, allocation.uuid, config)
    Reservation(wanted, there, paths, keeps=False, urn=urn).restart(node.id)


def slice_of(paths: ClusterPaths, config: Config, uuid: str) -> tuple[Connection, str]:
    """Return the way to the testbed and the name of a cluster's slice there.

    Whoever only looks, or renews, goes on where the journal is damaged.
    """
    there, wanted = connect(config), _nothing(paths, uuid, config)
    known = None
    try:
        known = journal.load(paths)
    except Unreadable as error:
        progress.emit("note", message=f"{error.message}; the slice is looked for by its name")
    urn = ownership.known_urn(there, known, wanted)
    if known is None and (found := ownership.find(there, urn, wanted)):
        urn = found.urn
    return there, urn


def existing(paths: ClusterPaths, config: Config) -> list[Existing]:
    """Return every slice of the project that holds nodes under a cluster's name.

    An empty slice is nothing: authorities do not remove slices, they let them expire.
    """
    there = connect(config)
    patience = _patience(there)
    slices = patience.insist(lambda: there.authority.of_project(there.project))
    owners = {slice_.urn: owner(slice_.description) for slice_ in slices}
    found = {name: who[1] for name, who in owners.items() if who and who[0] == paths.name}
    # The journal knows a slice whose description the authority did not keep.
    known = journal.load(paths)
    lost = {s.urn for s in slices if ownership.is_taken(there, s, known)}
    if known and known.request and not owners.get(known.slice_urn) and known.slice_urn not in lost:
        found[known.slice_urn] = known.uuid
    for slice_ in slices:
        if slice_.is_closed and slice_.urn not in found and _is_called(slice_.urn, paths.name):
            _pass_over(slice_.urn, "the authority tells its members alone more than its name")
    mine = known.uuid if known else record.uuid(paths)
    return [
        Existing("slice", urns.parse(slice_urn, "slice").name, slice_urn, uuid)
        for slice_urn, uuid in found.items()
        if _holds_nodes(there, slice_urn, is_mine=uuid == mine)
    ]


def remove(paths: ClusterPaths, config: Config, thing: Existing) -> None:
    """Give back what a slice holds."""
    wanted = _nothing(paths, thing.uuid, config)
    Reservation(wanted, connect(config), paths, urn=thing.id).release()


def _nothing(paths: ClusterPaths, uuid: str, config: Config) -> SliceInputs:
    """Return what a cluster's slice is called, without a wish for any node."""
    return SliceInputs(
        cluster=paths.name,
        uuid=uuid,
        testbed=config,
        request="",
        public_key="",
        duration=0,
        groups={"": Group(nodes=(), min=0)},
        head="",
    )


def _holds_nodes(there: Connection, slice_urn: str, *, is_mine: bool) -> bool:
    """Say whether a slice holds nodes; one of somebody else's may be closed to us.

    Whoever is none of its members gets no credentials, or may do nothing with them. An aggregate
    that refuses for another reason says nothing of whose the slice is.
    """
    credentials = None
    try:
        credentials = _credentials(there, slice_urn)
        return credentials is not None and _described(there, slice_urn, credentials) is not None
    except Busy:
        raise
    except Answered as error:
        if is_mine or (credentials and error.code != FORBIDDEN):
            raise
        _pass_over(slice_urn, error.message)
        return False


def _is_called(slice_urn: str, cluster: str) -> bool:
    """Say whether a slice is called as those of a cluster are, whatever its id."""
    name = urns.parse(slice_urn, "slice").name
    return name == urns.slice_name(cluster, name[-8:])


@cache  # a verb looks several times
def _pass_over(slice_urn: str, why: str) -> None:
    name = urns.parse(slice_urn, "slice").name
    progress.emit("note", message=f"slice {name} is somebody else's and is passed over: {why}")


def _look(there: Connection, slice_urn: str) -> Description | None:
    credentials = _credentials(there, slice_urn)
    return _described(there, slice_urn, credentials) if credentials else None


def _credentials(there: Connection, slice_urn: str) -> list[Credential] | None:
    """Return the credentials for a slice; None where it has expired."""
    patience = _patience(there)
    found = patience.insist(lambda: there.authority.find(slice_urn))
    if found is None or found.expired:
        return None
    return patience.insist(lambda: there.authority.slice_credentials(slice_urn))


def _described(
    there: Connection, slice_urn: str, credentials: list[Credential]
) -> Description | None:
    return _patience(there).insist(lambda: there.aggregate.describe(slice_urn, credentials))


def _patience(there: Connection) -> Patience:
    return Patience.of(there.config, min(_LOOK_S, there.config.patience))


def _state(operational: str) -> str:
    return "ready" if operational == "geni_ready" else "stopped"

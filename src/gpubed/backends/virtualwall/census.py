"""What the testbed has of a cluster."""

from __future__ import annotations

from gpubed.backends.virtualwall import bastion, journal, ownership
from gpubed.backends.virtualwall import urn as urns
from gpubed.backends.virtualwall.aggregate import Description
from gpubed.backends.virtualwall.config import Config
from gpubed.backends.virtualwall.connection import Connection, config_of, connect
from gpubed.backends.virtualwall.faults import Answered, Busy
from gpubed.backends.virtualwall.patience import Patience
from gpubed.backends.virtualwall.reservation import Reservation
from gpubed.backends.virtualwall.slice_inputs import Group, SliceInputs, owner
from gpubed.core import progress
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths, Project
from gpubed.nodes.allocation import Allocation
from gpubed.testbeds.base import Existing

_LOOK_S = 120.0
# How this process has reached testbeds: the journal that told it goes with the slice, and then
# `down` looks whether anything is left.
_reached: dict[ClusterPaths, Config] = {}


def describe(allocation: Allocation) -> dict[str, str]:
    """Return the state of each node: ready, stopped (not ready) or missing."""
    there, slice_urn = slice_of(allocation)
    # Whoever asks for states goes to the nodes next.
    bastion.renew_identity(there.config, there.login, Project.find().cluster(allocation.cluster))
    found = _look(there, slice_urn)
    states = {s.urn: s.operational for s in found.slivers} if found else {}
    return {
        node.name: _state(states[node.id]) if node.id in states else "missing"
        for node in allocation.nodes
    }


def slice_of(allocation: Allocation) -> tuple[Connection, str]:
    """Return the way to the testbed and the name of a cluster's slice there."""
    cluster = Project.find().cluster(allocation.cluster)
    config = _config(cluster)
    there, wanted = connect(config), _nothing(cluster, allocation.uuid, config)
    return there, ownership.known_urn(there, journal.load(cluster), wanted)


def existing(cluster: str) -> list[Existing]:
    """Return every slice of the project that holds nodes under a cluster's name.

    An empty slice is nothing: authorities do not remove slices, they let them expire.
    """
    paths = Project.find().cluster(cluster)
    there = connect(_config(paths))
    patience = _patience(there)
    slices = patience.insist(lambda: there.authority.of_project(there.project))
    owners = {slice_.urn: owner(slice_.description) for slice_ in slices}
    found = {name: who[1] for name, who in owners.items() if who and who[0] == cluster}
    # The journal knows a slice whose description the authority did not keep.
    known = journal.load(paths)
    if known and known.request and not owners.get(known.slice_urn):
        found[known.slice_urn] = known.uuid
    for slice_ in slices:
        if slice_.is_closed and slice_.urn not in found and _is_called(slice_.urn, cluster):
            _pass_over(slice_.urn, "the authority tells its members alone more than its name")
    mine = known.uuid if known else None
    return [
        Existing("slice", urns.parse(slice_urn, "slice").name, slice_urn, uuid)
        for slice_urn, uuid in found.items()
        if _holds_nodes(there, slice_urn, is_mine=uuid == mine)
    ]


def remove(thing: Existing) -> None:
    """Give back what a slice holds."""
    cluster = Project.find().cluster(_cluster_of(thing))
    config = _config(cluster)
    wanted = _nothing(cluster, thing.uuid, config)
    Reservation(wanted, connect(config), cluster, urn=thing.id).release()


def _nothing(cluster: ClusterPaths, uuid: str, config: Config) -> SliceInputs:
    """Return what a cluster's slice is called, without a wish for any node."""
    return SliceInputs(
        cluster=cluster.name,
        uuid=uuid,
        testbed=config,
        request="",
        public_key="",
        duration=0,
        groups={"": Group(nodes=(), min=0)},
        head="",
    )


def _cluster_of(thing: Existing) -> str:
    for name in Project.find().known():
        if urns.slice_name(name, thing.uuid) == thing.name:
            return name
    raise GpubedError(f"no cluster of this project is called as slice {thing.name} says")


def _config(cluster: ClusterPaths) -> Config:
    """Return how to reach the testbed: as the specification says, else as the journal does."""
    known = journal.load(cluster)
    config = config_of(cluster) or (known.testbed if known else _reached.get(cluster))
    if config is None:
        raise GpubedError(
            f"nothing tells how to reach the testbed of {cluster.name}",
            f"gpubed check {cluster.name}" if cluster.spec.exists() else f"restore {cluster.spec}",
        )
    _reached[cluster] = config
    return config


def _holds_nodes(there: Connection, slice_urn: str, *, is_mine: bool) -> bool:
    """Say whether a slice holds nodes; one of somebody else's may be closed to us."""
    try:
        return _look(there, slice_urn) is not None
    except Busy:
        raise
    except Answered as error:
        if is_mine:
            raise
        _pass_over(slice_urn, error.message)
        return False


def _is_called(slice_urn: str, cluster: str) -> bool:
    """Say whether a slice is called as those of a cluster are, whatever its id."""
    name = urns.parse(slice_urn, "slice").name
    return name == urns.slice_name(cluster, name[-8:])


def _pass_over(slice_urn: str, why: str) -> None:
    name = urns.parse(slice_urn, "slice").name
    progress.emit("note", message=f"slice {name} is somebody else's and is passed over: {why}")


def _look(there: Connection, slice_urn: str) -> Description | None:
    patience = _patience(there)
    found = patience.insist(lambda: there.authority.find(slice_urn))
    if found is None or found.expired:
        return None
    credentials = patience.insist(lambda: there.authority.slice_credentials(slice_urn))
    return patience.insist(lambda: there.aggregate.describe(slice_urn, credentials))


def _patience(there: Connection) -> Patience:
    return Patience.of(there.config, min(_LOOK_S, there.config.patience))


def _state(operational: str) -> str:
    return "ready" if operational == "geni_ready" else "stopped"

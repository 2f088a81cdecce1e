"""The nodes and networks that a testbed granted: the interface of backends with all other code."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gpubed.core import reading, record, runlock
from gpubed.core.errors import GpubedError, Locked, UsageError
from gpubed.core.paths import ClusterPaths, Project
from gpubed.spec.plan import ClusterPlan

Port = Annotated[int, Field(gt=0, lt=65536)]
# Restricted, because values from testbeds and nodes go into ssh_config and known_hosts.
_Word = Annotated[str, Field(pattern=r'^[^\s"]+$')]
_Key = Annotated[str, Field(pattern=r"^[ -~]+$")]


class _Model(BaseModel):
    # Other versions may have kept more fields.
    model_config = ConfigDict(extra="ignore", frozen=True)


class Hop(_Model):
    """A host on the way to nodes."""

    address: _Word  # of its SSH server
    port: Port = 22
    user: _Word
    host_keys: tuple[_Key, ...]  # public host keys (`type base64`), collected out of band
    # A private key of the controller, or the public part of a key in an SSH agent. None stands for
    # the cluster's own key.
    identity: str | None = None


class Node(_Model):
    """One granted node."""

    name: str  # unique in the cluster; also the host name
    # The testbed's id (container id, server UUID, sliver URN). A replaced node has a new one.
    id: str
    group: str  # the node group of the specification
    role: Literal["head", "worker"]
    control_address: _Word  # of its SSH server
    experiment_address: _Word | None = None  # on the experiment network, if there is one
    port: Port = 22
    user: _Word = "gpubed"  # may use sudo
    host_keys: tuple[_Key, ...]  # public host keys (`type base64`), collected out of band
    slots: int = (
        1  # ranks that a job starts here; 0 on a node without GPUs if other nodes have some
    )
    gpus: int = 0  # number of requested GPUs
    mig: str | None = None  # the MIG profile that each is cut into
    shards: int | None = None  # how many jobs may share each
    via: tuple[Hop, ...] = ()  # hops to the node, in the order of connecting

    @property
    def is_last_hop(self) -> bool:
        """Whether the last hop is the node itself, at another address."""
        return bool(self.via) and not {*self.via[-1].host_keys}.isdisjoint(self.host_keys)


def host_as_node(host: Hop, name: str = "", via: tuple[Hop, ...] = ()) -> Node:
    """Wrap a host that is no node of a cluster, so that `SSH` can connect to it."""
    return Node(
        name=name or host.address,
        id="",
        group="",
        role="worker",
        control_address=host.address,
        port=host.port,
        user=host.user,
        host_keys=host.host_keys,
        via=via,
    )


def known_as(address: str, port: int) -> str:
    """Return an address as OpenSSH writes it in `known_hosts`."""
    return address if port == 22 else f"[{address}]:{port}"


class Failure(_Model):
    """Why the testbed could not provide a node."""

    node: str
    reason: str


class Network(_Model):
    """A granted network; `rate_bps` is the declared rate of its links in bit/s."""

    subnet: str
    rate_bps: int | None = None
    mtu: int = 1500


class Allocation(_Model):
    """All nodes and networks of a cluster, head first."""

    version: Literal[1] = 1
    cluster: str
    uuid: str
    backend: str
    nodes: tuple[Node, ...]
    control: Network
    experiment: Network | None = None
    failed: tuple[Failure, ...] = ()  # nodes that the cluster does without
    one_host: bool = False
    """Whether all nodes share the CPUs of one machine (the local backend)."""

    @property
    def head(self) -> Node:
        """The node where environments are built, services run and jobs start."""
        self.require_nodes()
        return self.nodes[0]

    @property
    def with_ranks(self) -> tuple[Node, ...]:
        """The nodes on which jobs start ranks."""
        return tuple(node for node in self.nodes if node.slots)

    def require_nodes(self) -> None:
        """Raise `GpubedError` if there are no nodes, because the testbed runs jobs only."""
        if not self.nodes:
            raise GpubedError(
                f"cluster {self.cluster} has no nodes: {self.backend} runs jobs only",
                f"gpubed run {self.cluster} digits",
            )

    def node(self, name: str) -> Node:
        """Return a node by name; `head` names the head."""
        self.require_nodes()
        for node in self.nodes:
            if name in (node.name, node.role) and (name != "worker"):
                return node
        names = ", ".join(node.name for node in self.nodes)
        raise UsageError(f"cluster {self.cluster} has no node {name!r}", f"nodes: {names}")


class NotUp(GpubedError):
    """There is no allocation: the cluster is not up."""


class BeingMade(NotUp, Locked):
    """There is no allocation yet: `gpubed up` is creating it."""


def load(path: Path) -> Allocation:
    """Read the allocation of a cluster.

    Raises:
        NotUp: There is none; `BeingMade` while `gpubed up` creates it.
    """
    name = path.parent.name
    try:
        return reading.file(path, f"gpubed up {name}").json(Allocation)
    except reading.Missing:
        holder = runlock.holder(path.parent)
        if holder and holder.verb == "up":
            raise BeingMade(
                f"cluster {name} is not up yet: {holder} is running", "wait for its end"
            ) from None
        # The cluster may be up with its state lost.
        verb = "pulumi up" if Project(path.parents[2]).has_users_program else f"gpubed up {name}"
        hint = f"{verb}; if it was up already: gpubed audit {name}"
        raise NotUp(f"cluster {name} is not up", hint) from None


def note_change(paths: ClusterPaths, new: str = "") -> bool:
    """Note in the cluster's record that nodes or links change.

    Jobs refuse to start until roles and checks have run. Creating a node (`new`) that the cluster
    lacked so far changes no other node, and is not noted. Returns whether the note is new.
    """
    try:
        names = {node.name for node in load(paths.allocation).nodes}
    except GpubedError:  # jobs need a readable allocation anyway
        return False
    if not names or (new and new not in names) or record.read(paths).unfinished == "nodes":
        return False
    with record.changed(paths) as cluster:
        cluster.unfinished = "nodes"
    return True


@dataclass(frozen=True)
class Cluster:
    """The paths, the plan and the allocation of a cluster whose nodes are granted.

    The allocation may hold a part of the nodes, for work on these only.
    """

    paths: ClusterPaths
    plan: ClusterPlan
    allocation: Allocation

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.paths.name

"""ClusterPlan: names, addresses, groups and links, computed from the specification.

A pure function: the same specification gives the same plan on every machine where its subnets
are free, and changing the count of a group changes no other node's name or address.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from typing import Literal

from pydantic import BaseModel, ConfigDict

from gpubed.core.errors import UsageError
from gpubed.spec.clusterspec import ClusterSpec, spec_backend
from gpubed.spec.sections import Machine, Simulation

# Private ranges for clusters that do not name their subnets. A hash of the cluster's name
# chooses the slice, so that clusters on one machine rarely collide.
_RANGES = {"control": IPv4Network("10.64.0.0/10"), "experiment": IPv4Network("10.128.0.0/10")}
_PREFIX = 20
# Node i of group g has offset 10 + 10·i + g, so that growing one group moves no other.
_STRIDE = 10


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NetworkPlan(_Model):
    """A network; the gateway is its first address."""

    subnet: IPv4Network
    mtu: int | None = 1500  # None if the testbed chooses; its allocation has the value
    rate_bps: int | None = None


class NodePlan(_Model):
    """A node to be allocated.

    Attributes:
        slots: How many ranks a job starts on it: one per GPU. Nodes without GPUs have one slot
            only if no node has GPUs, since Horovod cannot sum on CPUs and GPUs at once. GPUs that
            are cut (`mig`) or shared (`shards`) have none: Slurm gives their parts to jobs.
        on_failure: What to do if the node fails; None if the cluster needs it.
    """

    name: str
    group: str
    index: int
    role: Literal["head", "worker"]
    control_address: IPv4Address
    experiment_address: IPv4Address | None
    machine: Machine
    gpus: int
    mig: str | None = None
    shards: int | None = None
    simulate: Simulation | None = None
    image: str
    slots: int
    on_failure: Literal["replace", "leave_out"] | None = None


class ClusterPlan(_Model):
    """Everything a backend needs to know."""

    version: Literal[1] = 1
    cluster: str
    backend: str
    spec: ClusterSpec
    nodes: tuple[NodePlan, ...]
    control: NetworkPlan
    experiment: NetworkPlan | None
    may_reboot: bool

    @property
    def removes_disks(self) -> bool:
        """Whether a node's own disks are deleted with the node."""
        return self.spec.backend.removes_disks

    @property
    def node_hours(self) -> float | None:
        """Node-hours of the whole lease; None if the testbed has no leases."""
        if not self.spec.backend.leases:
            return None
        return len(self.nodes) * self.spec.lease.duration / 3600


class Unplannable(UsageError):
    """The specification is valid, but its nodes cannot be given addresses."""

    def __init__(self, path: tuple[str | int, ...], message: str, allowed: str) -> None:
        super().__init__(message, allowed)
        self.path, self.allowed = path, allowed


@dataclass(frozen=True)
class Surroundings:
    """The networks around a cluster, for subnets that its specification does not name."""

    # The present subnets of the cluster's networks, by purpose
    kept: Mapping[str, IPv4Network] = field(default_factory=dict)
    taken: Sequence[IPv4Network] = ()  # subnets of other networks, avoided if possible


def plan(spec: ClusterSpec, around: Surroundings | None = None) -> ClusterPlan:
    """Compute the plan; raise `Unplannable` if subnets are too small or overlap."""
    testbed = spec.backend
    if spec.storage.shared.provider == "auto":
        shared = spec.storage.shared.model_copy(update={"provider": testbed.shared_storage})
        storage = spec.storage.model_copy(update={"shared": shared})
        spec = spec.model_copy(update={"storage": storage})
    needed = 0
    if testbed.plans_addresses:
        needed = max(10 + _STRIDE * group.count + len(spec.nodes) for group in spec.nodes)
    wanted, experiment, around = spec.networks.experiment, None, around or Surroundings()
    other = (wanted.subnet or around.kept.get("experiment")) if wanted else None
    control = _subnet(spec, "control", needed, other, around)
    if wanted:
        subnet = _subnet(spec, "experiment", needed, control, around)
        free = testbed.chooses_mtu and "mtu" not in wanted.model_fields_set
        mtu = None if free else wanted.mtu
        experiment = NetworkPlan(subnet=subnet, mtu=mtu, rate_bps=wanted.rate_bps)
    on_gpus = testbed.lends_nodes and any(group.gpus.per_node for group in spec.nodes)
    nodes: list[NodePlan] = []
    for position, group in enumerate(spec.nodes):
        for index, name in enumerate(group.node_names):
            offset = 10 + _STRIDE * index + position
            is_spare = group.least < group.count and bool(nodes)
            node = NodePlan(
                name=name,
                group=group.name,
                index=index,
                role="worker" if nodes else "head",
                control_address=control.network_address + offset,
                experiment_address=experiment and experiment.subnet.network_address + offset,
                machine=group.machine,
                gpus=group.gpus.per_node,
                mig=group.gpus.mig,
                shards=group.gpus.shards,
                simulate=group.simulate,
                image=group.image,
                slots=group.gpus.whole if on_gpus else max(1, group.gpus.per_node),
                on_failure=group.on_failure if is_spare else None,
            )
            nodes.append(node)
    return ClusterPlan(
        cluster=spec.name,
        backend=spec_backend(spec),
        spec=spec,
        nodes=tuple(nodes),
        control=NetworkPlan(subnet=control),
        experiment=experiment,
        may_reboot=testbed.may_reboot if spec.may_reboot is None else spec.may_reboot,
    )


def _subnet(
    spec: ClusterSpec, purpose: str, needed: int, avoid: IPv4Network | None, around: Surroundings
) -> IPv4Network:
    given: IPv4Network | None = getattr(spec.networks, purpose).subnet
    kept = around.kept.get(purpose)
    if given is None and kept and kept.num_addresses > needed:
        given = kept
    if given is None:
        return _slice(spec.name, purpose, needed, avoid, around.taken)
    if given.num_addresses <= needed:
        smallest = 32 - needed.bit_length()
        raise Unplannable(
            ("networks", purpose, "subnet"),
            f"{given} is too small for the nodes",
            f"a /{smallest} or larger",
        )
    return given


def slices(cluster: str, purpose: str, prefix: int = _PREFIX) -> Iterator[IPv4Network]:
    """Yield the slices of a network's range; a hash of the cluster's name chooses the first.

    Args:
        cluster: The cluster's name.
        purpose: `control` or `experiment`.
        prefix: The length of a slice's prefix, in bits.
    """
    pool = _RANGES[purpose]
    slots = 2 ** (prefix - pool.prefixlen)
    digest = hashlib.sha256(f"{cluster}/{purpose}".encode()).digest()
    first = int.from_bytes(digest[:4], "big")
    for slot in range(first, first + slots):
        base = int(pool.network_address) + slot % slots * 2 ** (32 - prefix)
        yield IPv4Network((base, prefix))


def _slice(
    cluster: str, purpose: str, needed: int, avoid: IPv4Network | None, taken: Sequence[IPv4Network]
) -> IPv4Network:
    # Larger clusters need a larger slice; the usual size holds 400 nodes a group.
    prefix = _PREFIX if needed < 2 ** (32 - _PREFIX) else 16
    found = [
        each
        for each in slices(cluster, purpose, prefix)
        if avoid is None or not each.overlaps(avoid)
    ]
    if not found:
        raise Unplannable(
            ("networks",),
            f"{avoid} leaves nothing of {_RANGES[purpose]} to the {purpose} network",
            f"a smaller one, or name networks.{purpose}.subnet",
        )
    # If other networks use the whole range, the testbed reports the conflict.
    return next((each for each in found if not any(map(each.overlaps, taken))), found[0])

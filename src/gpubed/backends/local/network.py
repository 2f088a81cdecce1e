"""A cluster's networks (bridges), their subnets, and its shared volume."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from docker.errors import APIError, NotFound
from docker.models.networks import Network
from docker.models.volumes import Volume
from docker.types import IPAMConfig, IPAMPool

from gpubed.backends.local import daemon, ownership, runtime
from gpubed.backends.local.ownership import Owner
from gpubed.core import record
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.nodes import allocation
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.spec.plan import ClusterPlan, Surroundings, slices
from gpubed.testbeds.base import Finding
from gpubed.testbeds.driver import Driver, Properties

# MTUs of bridges. A node sets the MTU of its own link, so that a change replaces no network.
_MTU = {"control": 1500, "experiment": 9216}


class NetworkDriver(Driver):
    """Inputs: cluster, uuid, purpose (`control`, `experiment`), subnet."""

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Make the network."""
        owner = Owner.of(inputs)
        digest = ownership.digest({key: inputs[key] for key in ("purpose", "subnet")})
        with daemon.errors(f"make the {inputs['purpose']} network"):
            found = ownership.own(_find(inputs), owner)
            if found is not None and ownership.labels(found).get(ownership.DIGEST) != digest:
                _require_unused(inputs)
                self.delete("", inputs)
                found = None
            found = found or _make(inputs, owner.labels(digest))
        return str(found.id), {"name": found.name}

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Return the network's name; None if it is gone, or was recreated under its name."""
        with daemon.errors(f"look at the {inputs['purpose']} network"):
            found = ownership.ours(_find(inputs), inputs)
        return {"name": found.name} if found and found.id == id else None

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Remove the network."""
        with daemon.errors(f"remove the {inputs['purpose']} network"):
            ownership.remove_until_gone(
                lambda: ownership.ours(_find(inputs), inputs), lambda network: network.remove()
            )


def _require_unused(inputs: Properties) -> None:
    """Refuse another subnet while the network has nodes in use, whose state was lost."""
    cluster = inputs["cluster"]
    label = f"{ownership.CLUSTER}={inputs['uuid']}"
    for container in daemon.client().containers.list(all=True, filters={"label": label}):
        if runtime.is_in_use(container):
            raise GpubedError(
                f"the {inputs['purpose']} network of {cluster} exists with another subnet, and its "
                "nodes are in use: their replacement would delete their own disks",
                f"restore the former inventories/{cluster}/cluster.yml; or give the nodes up, not "
                f"the shared data: gpubed audit {cluster} --remove",
            )


def _find(inputs: Properties) -> Network | None:
    name = Owner.of(inputs).name(inputs["purpose"])
    # The daemon's filter matches parts of names.
    found = [n for n in daemon.client().networks.list(names=[name]) if n.name == name]
    return found[0] if found else None


def _make(inputs: Properties, labels: dict[str, str]) -> Network:
    subnet, purpose = IPv4Network(inputs["subnet"]), inputs["purpose"]
    pool = IPAMPool(subnet=str(subnet), gateway=str(subnet[1]))
    try:
        made = daemon.client().networks.create(
            Owner.of(inputs).name(purpose),
            driver="bridge",
            ipam=IPAMConfig(pool_configs=[pool]),
            # The experiment network has no gateway and no NAT.
            internal=purpose == "experiment",
            options={"com.docker.network.driver.mtu": str(_MTU[purpose])},
            labels=labels,
        )
    except APIError as error:
        if "overlap" not in daemon.reason(error).lower():
            raise
        cluster = inputs["cluster"]
        _, taken = in_use(cluster, inputs["uuid"])
        whose = next((text for net, text in taken if net.overlaps(subnet)), "another network")
        fix = f"set networks.{purpose}.subnet in inventories/{cluster}/cluster.yml"
        raise GpubedError(f"the {purpose} network {subnet} is used by {whose}", fix) from None
    return made


class VolumeDriver(Driver):
    """Inputs: cluster, uuid, purpose."""

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Make the volume."""
        owner, digest = Owner.of(inputs), ownership.digest({"purpose": inputs["purpose"]})
        name = owner.name(inputs["purpose"])
        with daemon.errors("make the shared volume"):
            if ownership.own(_find_volume(inputs), owner) is None:
                # Docker's CreatedAt is the time of the last change in the folder.
                made = {ownership.MADE: datetime.now(UTC).isoformat(timespec="seconds")}
                daemon.client().volumes.create(name, labels={**owner.labels(digest), **made})
        return name, {"name": name}

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Return the volume's name; None if it does not exist."""
        with daemon.errors("look at the shared volume"):
            found = ownership.ours(_find_volume(inputs), inputs)
        return {"name": found.name} if found else None

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Keep the volume: only `gpubed down` deletes data."""


def _find_volume(inputs: Properties) -> Volume | None:
    try:
        return daemon.client().volumes.get(Owner.of(inputs).name(inputs["purpose"]))
    except NotFound:
        return None


def surroundings(spec: ClusterSpec, paths: ClusterPaths) -> Surroundings:
    """Return a cluster's subnets and, if it still needs one, the subnets in use.

    If Docker does not answer, only the cluster's name decides its subnets.
    """
    kept = dict[str, IPv4Network]()
    with suppress(GpubedError):
        granted = allocation.load(paths.allocation)
        if granted.backend == "local":
            networks = {"control": granted.control, "experiment": granted.experiment}
            kept = {name: IPv4Network(net.subnet) for name, net in networks.items() if net}
    wanted = {"control": spec.networks.control, "experiment": spec.networks.experiment}
    if all(net is None or net.subnet or name in kept for name, net in wanted.items()):
        return Surroundings(kept)
    with suppress(GpubedError):
        own, taken = in_use(paths.name, record.uuid(paths))
        return Surroundings({**own, **kept}, [subnet for subnet, _ in taken])
    return Surroundings(kept)


def subnets(planned: ClusterPlan, paths: ClusterPaths) -> Iterator[Finding]:
    """Yield a finding for each network: whether its subnet is free."""
    _, taken = in_use(paths.name, record.uuid(paths))
    networks = {"control": planned.control, "experiment": planned.experiment}
    own = [network.subnet for network in networks.values() if network]
    for purpose, network in networks.items():
        if network is None:
            continue
        kind = f"local.subnet.{purpose}"
        clash = next((text for net, text in taken if net.overlaps(network.subnet)), None)
        if clash is None:
            yield Finding(kind, True, f"{network.subnet} is free")
            continue
        used = [*own, *(net for net, _ in taken)]
        proposed = (n for n in slices(paths.name, purpose) if not any(map(n.overlaps, used)))
        free = "".join(f" ({net} is free)" for net in itertools.islice(proposed, 1))
        fix = f"set networks.{purpose}.subnet in inventories/{paths.name}/cluster.yml{free}"
        yield Finding(kind, False, f"{network.subnet} is used by {clash}", fix)


def in_use(
    cluster: str, uuid: str | None
) -> tuple[dict[str, IPv4Network], list[tuple[IPv4Network, str]]]:
    """Return the subnets of the cluster's networks, by purpose, and those of others."""
    with daemon.errors("list Docker's networks"):
        networks = daemon.look().networks.list()
    own, taken = dict[str, IPv4Network](), []
    for network in networks:
        pools = network.attrs["IPAM"]["Config"] or []
        subnets = [IPv4Network(p["Subnet"]) for p in pools if ":" not in p.get("Subnet", ":")]
        its = ownership.labels(network)
        if uuid is not None and its.get(ownership.CLUSTER) == uuid:
            own[str(network.name).rpartition("-")[2]] = subnets[0]
            continue
        another = ""
        if its.get(ownership.NAME) == cluster:
            another = f" of another {cluster} (gpubed audit {cluster} tells more)"
        taken += [(subnet, f"Docker network {network.name}{another}") for subnet in subnets]
    known = {*own.values(), *(subnet for subnet, _ in taken)}
    return own, taken + [(net, text) for net, text in _routes() if net not in known]


def _routes() -> Iterator[tuple[IPv4Network, str]]:
    for line in Path("/proc/net/route").read_text(encoding="utf-8").splitlines()[1:]:
        fields = line.split()
        address, mask = (IPv4Address(bytes.fromhex(f)[::-1]) for f in (fields[1], fields[7]))
        if int(mask):  # the default route overlaps with everything
            route = IPv4Network(f"{address}/{mask}")
            yield route, f"a route of this machine (interface {fields[0]})"

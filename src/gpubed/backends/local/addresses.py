"""The subnets of a cluster on this machine, and those that others use."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from gpubed.backends.local import daemon, ownership
from gpubed.core import record
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.nodes import allocation
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.spec.plan import ClusterPlan, Surroundings, slices
from gpubed.testbeds.base import Finding


def surroundings(spec: ClusterSpec, paths: ClusterPaths) -> Surroundings:
    """Return a cluster's subnets and, if it still needs one, those that others use.

    If Docker does not answer, the name alone picks the subnets.
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
            yield Finding(kind, True, f"nobody else uses {network.subnet}")
            continue
        used = [*own, *(net for net, _ in taken)]
        proposed = (n for n in slices(paths.name, purpose) if not any(map(n.overlaps, used)))
        free = "".join(f" ({net} is free)" for net in itertools.islice(proposed, 1))
        fix = f"set networks.{purpose}.subnet in inventories/{paths.name}/cluster.yml{free}"
        yield Finding(kind, False, f"{network.subnet} is used by {clash}", fix)


def in_use(
    cluster: str, uuid: str | None
) -> tuple[dict[str, IPv4Network], list[tuple[IPv4Network, str]]]:
    """Return the subnets of the cluster's own networks, by purpose, and those of others."""
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

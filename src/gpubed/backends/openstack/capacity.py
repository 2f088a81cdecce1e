"""Checks before the first create that a cloud has all that a cluster needs.

A server without a host or quota fails minutes later, with a message that hides the reason. The
dynamic resources for capacity, images and the external network make nothing. As resources, they run
before all others, also under plain `pulumi up`, and again only if their inputs change.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Self

from openstack import exceptions
from openstack.connection import Connection
from pydantic import BaseModel, ConfigDict

from gpubed.backends.openstack import cloud, existing, labels
from gpubed.backends.openstack.config import ID, Config, NetworkOptions, Server, gib
from gpubed.core import reading
from gpubed.core.errors import GpubedError, Refused
from gpubed.core.paths import ClusterPaths
from gpubed.core.text import nearest_name
from gpubed.nodes import allocation as allocations
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.base import Finding, Offer
from gpubed.testbeds.driver import Change, Driver, Properties

_COMPUTE = {
    "instances": "server(s)",
    "cores": "CPU(s)",
    "ram": "MiB of memory",
    "keypairs": "key pair(s)",
    "server_groups": "server group(s)",
    "server_group_members": "server(s) in one server group",
}
_NETWORK = {
    "ports": "port(s)",
    "networks": "network(s)",
    "subnets": "subnet(s)",
    "routers": "router(s)",
    "floating_ips": "floating address(es)",
    "security_groups": "security group(s)",
    "security_group_rules": "rule(s) of security groups",
}
_QUOTAS = {**_COMPUTE, **_NETWORK, "volumes": "volume(s)", "gigabytes": "GiB of volumes"}
# Groups of resources have a suffix: `resources1:VGPU`, `resources_GPU:VGPU`.
_RESOURCE = re.compile(r"resources[\w-]{0,64}:(\w+)")
# Resource classes that every cloud has, none of which is a GPU.
_STANDARD = re.compile(r"VCPU|PCPU|MEMORY_MB|MEM_ENCRYPTION_CONTEXT|DISK_GB|NET_\w+|SRIOV_\w+")
_OF_SERVERS = ("VCPU", "MEMORY_MB", "DISK_GB")
_GPU = re.compile(
    r"gpu|nvidia|tesla|quadro|geforce|radeon|instinct|(?<![a-z0-9])("
    r"k[48]0|m[46]0|p4|p40|p100|t4|v100s?|a2|a10g?|a16|a30|a40|a100|a800|l4|l20|l40s?|h20|h100|"
    r"h200|h800|gh200|b100|b200|b300|gb200|rtx\w*|gtx\w*|mi\d{2,3}x?)(?![a-z0-9])",
    re.IGNORECASE,
)


class _Model(BaseModel):
    # Inputs of a resource also have `backend` and `kind`.
    model_config = ConfigDict(frozen=True, extra="ignore")


class GroupNeeds(_Model):
    """The servers of a node group; `image` is its name in the cloud."""

    name: str
    count: int
    gpus: int
    image: str
    server: Server


class Needs(NetworkOptions, _Model):
    """All needs of a cluster."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    cloud: str | None = None
    region: str | None = None
    groups: tuple[GroupNeeds, ...]
    networks: int
    qos: bool  # whether the cloud must limit links to their rate
    members: int  # servers in the cluster's server group; 0 without anti-affinity
    rules: int  # number of rules of all security groups

    @classmethod
    def of(cls, plan: ClusterPlan) -> Self:
        """Return the needs of a plan."""
        config = Config.of(plan.spec.backend)
        groups = tuple(
            GroupNeeds(
                name=group.name,
                count=group.count,
                gpus=group.gpus.per_node,
                image=config.images.get(group.image, group.image),
                server=config.server(group.name),
            )
            for group in plan.spec.nodes
        )
        members = sum(group.count for group in groups if not group.server.server_group)
        return cls(
            **config.where,
            **{name: getattr(config, name) for name in NetworkOptions.model_fields},
            groups=groups,
            networks=2 if plan.experiment else 1,
            qos=plan.experiment is not None and config.shaping == "qos",
            members=0 if config.anti_affinity == "none" else members,
            # OpenStack adds two egress rules to each of the two groups.
            rules=1 + len(door(plan.spec)) + 2 * 2,
        )

    def counted(self, flavors: Mapping[str, Any]) -> Counter[str]:
        """Return the number of resources by the names of their quotas."""
        nodes = sum(group.count for group in self.groups)
        used = (self.control.network, self.experiment.network)[: self.networks]
        made, joined = used.count(None), not self.control.network
        found = Counter(
            {
                "instances": nodes,
                "ports": self.networks * nodes + joined,  # and the router's
                "networks": made,
                "subnets": made,
                "routers": int(joined and not self.router),
                "floating_ips": int(self.floating_ip is True),
                "keypairs": int(any(not group.server.key_pair for group in self.groups)),
                "security_groups": 2,
                "security_group_rules": self.rules,
                "server_groups": 1 if self.members else 0,
            }
        )
        for group in self.groups:
            boot, flavor = group.server.boot_volume, flavors[group.server.flavor]
            data = [volume.size for volume in group.server.data_volumes]
            volumes = [gib(size) for size in (boot, *data) if size]
            found["volumes"] += group.count * len(volumes)
            found["gigabytes"] += group.count * sum(volumes)
            if flavor is not None:  # a flavor of existing servers may be gone
                found["cores"] += group.count * flavor.vcpus
                found["ram"] += group.count * flavor.ram
        return found


def door(spec: ClusterSpec) -> dict[str, tuple[str, int, str]]:
    """Return the ingress rules from outside, by name: protocol, port and source."""
    rules = [("tcp", 22, source) for source in Config.of(spec.backend).access_from]
    rules += [(opened.protocol, opened.port, opened.source) for opened in spec.firewall.open]
    return {
        re.sub("[/:]", "-", f"{protocol}-{port}-{source}"): (protocol, port, str(source))
        for protocol, port, source in rules
    }


def findings(connection: Connection, needs: Needs, held: Needs | None = None) -> list[Finding]:
    """Check a cloud for the needs of a cluster, of which `held` are met already."""
    network = connection.network
    flavors = {
        group.server.flavor: _flavor(connection, group.server.flavor)
        for group in (*needs.groups, *(held or needs).groups)
    }
    found = list[Finding]()
    if name := needs.external_network:
        others = network.networks(is_router_external=True)
        found.append(one("external network", name, external_networks(connection, name), others))
    is_held = held is not None and held.floating_ip == needs.floating_ip
    servers = [group.server for group in needs.groups]
    found += existing.findings(connection, needs, servers, is_held=is_held)
    for group in needs.groups:
        found += _of_group(connection, group, flavors[group.server.flavor])
    if needs.qos and not (held and held.qos) and network.find_extension("qos") is None:
        why = "this cloud cannot hold links to a rate: its network service has no QoS"
        fix = "set backend.shaping: none, and networks.experiment.rate to what links carry"
        found.append(Finding("openstack.qos", False, why, fix))
    wanted = needs.counted(flavors)
    silent = not connection.has_service("block-storage")
    if silent and any(server.data_volumes for server in servers):
        why, fix = "this cloud has no block storage service", "leave data_volumes out"
        found.append(Finding("openstack.volumes", False, why, fix))
    elif silent and wanted["volumes"]:
        why = "this cloud shows no block storage service: whether boot_volume works is unknown"
        found.append(Finding("openstack.volumes", True, why))
    if not all(finding.ok for finding in found):
        return found
    if held:
        wanted -= held.counted(flavors)  # drops negative counts
    # The quota counts the members of one server group.
    grows = not held or needs.members > held.members
    wanted["server_group_members"] = needs.members if grows else 0
    return [*found, *_short(connection, wanted)]


def held(
    connection: Connection, needs: Needs, before: Needs | None, cluster: str, uuid: str | None
) -> Needs | None:
    """Return the needs that the servers of a cluster meet already; None if it has no server.

    `before` are the needs of the last applied specification, if known.
    """
    counts: Counter[str] = Counter()
    for server in connection.compute.servers(details=True):
        if uuid and labels.uuid_of(server, cluster) == uuid:
            counts[server.metadata.get(labels.GROUP, "")] += 1
    made, wanted = before or needs, {group.name for group in needs.groups}
    groups = tuple(
        group.model_copy(update={"count": counts[group.name]})
        for group in made.groups
        if group.name in wanted  # Pulumi removes servers of other groups last
    )
    members = min(made.members, counts.total())
    return made.model_copy(update={"groups": groups, "members": members}) if counts else None


def shrunk(before: Needs, after: Needs) -> list[Finding]:
    """Return findings for data volumes that would shrink or be reordered, which no cloud can do."""
    former = {group.name: _sizes(group) for group in before.groups}
    found = list[Finding]()
    for group in after.groups:
        wanted, had = _sizes(group), former.get(group.name, [])
        moved = len(wanted) < len(had) and wanted != had[: len(wanted)]
        if moved or any(gib(new) < gib(old) for new, old in zip(wanted, had, strict=False)):
            sizes = ", ".join(f"{gib(size)} GiB" for size in had)
            message = (
                f"data_volumes of group {group.name} were {sizes}: none can become smaller, "
                "and of several only the last can be left out"
            )
            fix = "keep their sizes and order: larger ones, more at the end, or fewer from there"
            found.append(Finding("openstack.volumes", False, message, fix))
    return found


def _sizes(group: GroupNeeds) -> list[int]:
    return [volume.size for volume in group.server.data_volumes]


def moved(plan: ClusterPlan, paths: ClusterPaths) -> list[Finding]:
    """Return a finding if a planned node would get the address of another existing node.

    Pulumi removes that node last, and a cloud gives no address twice.
    """
    there, config = dict[str, str](), Config.of(plan.spec.backend)
    # On existing networks, the cloud chooses addresses.
    planned = [p for p in ("control", "experiment") if not getattr(config, p).network]
    key = f"{planned[0]}_address" if planned else "id"
    with suppress(GpubedError):  # there are no nodes, or the file is damaged
        there = {getattr(n, key): n.name for n in allocations.load(paths.allocation).nodes}
    for node in plan.nodes if planned else ():
        holder = there.get(str(getattr(node, key)), node.name)
        if holder != node.name:
            message = f"{node.name} would get the address of {holder}, which is removed after it"
            fix = f"keep names and order of the groups; or gpubed down {plan.cluster}, then up"
            return [Finding("openstack.address", False, message, fix)]
    return []


def offers(spec: ClusterSpec) -> list[Offer]:
    """Return the flavors, each with the number of servers that the quota allows.

    Nova does not tell users about free hosts.
    """
    connection = cloud.connect(*Config.of(spec.backend).where.values())
    with cloud.errors("list the flavors"):
        quotas, flavors = _quotas(connection), connection.compute.flavors(get_extra_specs=True)
        return [_offer(flavor, quotas) for flavor in sorted(flavors, key=lambda one: one.name)]


def images(connection: Connection, name: str) -> list[Any]:
    """Return the active images with a name or id."""
    found = list(connection.image.images(name=name))
    if not found and ID.fullmatch(name) and (image := connection.image.find_image(name)):
        found = [image]
    return [image for image in found if image.status == "active"]


def external_networks(connection: Connection, name: str) -> list[Any]:
    """Return the external networks of a name."""
    return list(connection.network.networks(name=name, is_router_external=True))


def one(what: str, name: str, found: list[Any], others: Iterable[Any]) -> Finding:
    """Check that exactly one resource has a name; `others` are suggested instead."""
    id_ = f"openstack.{what}"
    if len(found) == 1:
        return Finding(id_, True, f"{what} {name}")
    if found:
        ids = ", ".join(thing.id for thing in found)
        fix = "write its id under backend.images" if what == "image" else f"use another {what}"
        return Finding(id_, False, f"{len(found)} {what}s are named {name!r}: {ids}", fix)
    close = nearest_name(name, sorted(str(other.name) for other in others))
    message = f"there is no {what} {name!r}; {reading.short(close)}"
    return Finding(id_, False, message, "take one that exists")


def gpus(extra_specs: Mapping[str, str]) -> tuple[int, str] | None:
    """Return the number and name of GPUs in extra specs; None if they do not tell."""
    # A PCI alias is NAME:COUNT[,…], and NAME may be another adapter.
    aliases = extra_specs.get("pci_passthrough:alias", "").split(",")
    found = [alias.strip().partition(":")[::2] for alias in aliases]
    # A machine of Ironic has 0 standard resources, and 1 of a class with any name.
    is_whole = all(extra_specs.get(f"resources:{name}") == "0" for name in _OF_SERVERS)
    for key, value in extra_specs.items():
        named = _RESOURCE.fullmatch(key)
        if named and not is_whole and not _STANDARD.fullmatch(named[1]):
            found.append((named[1], value))
    counts = [(name, int(n)) for name, n in found if n.strip().isdecimal() and int(n)]
    if not counts or not all(_GPU.search(name) for name, _ in counts):
        return None
    return sum(count for _, count in counts), ", ".join(name for name, _ in counts)


def _flavor(connection: Connection, name: str) -> Any:
    """Return the flavor with a name or a UUID; the plugin knows no other ids."""
    found = connection.compute.find_flavor(name, get_extra_specs=True)
    return found if found is not None and (found.name == name or ID.fullmatch(name)) else None


def _of_group(connection: Connection, group: GroupNeeds, flavor: Any) -> Iterator[Finding]:
    compute, name = connection.compute, group.server.flavor
    yield one("flavor", name, [flavor] if flavor else [], compute.flavors())
    if flavor and group.gpus:
        wanted = f"group {group.name}: {group.gpus} GPU(s) per node are wanted, flavor {name}"
        if known := gpus(flavor.extra_specs or {}):
            right, told = known[0] >= group.gpus, f"has {known[0]} ({known[1]})"
        else:  # many clouds hide extra specs from users; `verify` checks the node
            right, told = True, "does not tell what it has"
        fix = None if right else "gpubed resources CLUSTER"
        yield Finding("openstack.gpus", right, f"{wanted} {told}", fix)
    yield one("image", group.image, images(connection, group.image), connection.image.images())
    if zone := group.server.availability_zone:
        zones = [z for z in compute.availability_zones() if z.state["available"]]
        yield one("availability zone", zone, [z for z in zones if z.name == zone], zones)


def _short(connection: Connection, wanted: Counter[str]) -> Iterator[Finding]:
    volumes = bool(wanted["volumes"] or wanted["gigabytes"])  # existing ones may grow
    volumes = volumes and connection.has_service("block-storage")
    quotas = _quotas(connection, volumes=volumes)
    short = {name: quota for name, quota in quotas.items() if wanted[name] > quota[1]}
    for name, (limit, left) in short.items():
        more = f"{wanted[name]} more {_QUOTAS[name]} are wanted, and {left} of {limit} are left"
        in_group = name.startswith("server_group")
        fix = "set backend.anti_affinity: none" if in_group else "lower count, free what is unused"
        fix += ", or ask the cloud's operators for more"
        yield Finding("openstack.quota", False, f"quota: {more}", fix)
    if not short:
        fits = "fit" if "instances" in quotas else "may fit: this cloud names no limit for them"
        yield Finding(
            "openstack.quota", True, f"quota: {wanted['instances']} more server(s) {fits}"
        )


def _quotas(connection: Connection, *, volumes: bool = False) -> dict[str, tuple[int, int]]:
    """Return a project's quotas by name, each as limit and remainder."""
    found: dict[str, tuple[Any, Any]] = {}
    with suppress(exceptions.NotFoundException, exceptions.ForbiddenException):
        compute: Any = connection.compute.get_limits().absolute
        for name in _COMPUTE:
            key = {"cores": "total_cores", "ram": "total_ram"}.get(name, name)
            # Nova does not report the use of key pairs and group members.
            found[name] = getattr(compute, key), getattr(compute, f"{key}_used", None)
    with suppress(exceptions.HttpException):  # older clouds report limits without use
        project = connection.current_project_id or ""
        network: Any = connection.network.get_quota(project, details=True)
        for name in _NETWORK:
            if told := getattr(network, name):
                found[name] = told["limit"], int(told["used"]) + int(told.get("reserved", 0))
    with suppress(exceptions.NotFoundException, exceptions.ForbiddenException):
        if volumes:
            storage: Any = connection.block_storage.get_limits().absolute
            found["volumes"] = storage.max_total_volumes, storage.total_volumes_used
            found["gigabytes"] = storage.max_total_volume_gigabytes, storage.total_gigabytes_used
    return {
        name: (int(limit), max(0, int(limit) - int(used or 0)))
        for name, (limit, used) in found.items()
        if limit is not None and int(limit) >= 0
    }


def _offer(flavor: Any, quotas: Mapping[str, tuple[int, int]]) -> Offer:
    costs = {"instances": 1, "cores": flavor.vcpus, "ram": flavor.ram}
    bounds = [(*quotas[name], cost) for name, cost in costs.items() if cost and name in quotas]
    known = gpus(flavor.extra_specs or {})
    return Offer(
        name=flavor.name,
        total=min((limit // cost for limit, _, cost in bounds), default=None),
        free=min((left // cost for _, left, cost in bounds), default=None),
        gpus=known[0] if known else None,
        gpu_model=known[1] if known else "",
        note=f"{flavor.vcpus} CPUs, {flavor.ram} MiB, {flavor.disk} GiB disk",
    )


def _require(needs: Needs, held: Needs | None, failed: list[Finding]) -> None:
    if not failed:
        connection = cloud.connect(needs.cloud, needs.region)
        with cloud.errors("check its capacity"):
            failed = [found for found in findings(connection, needs, held) if not found.ok]
    if failed:
        raise Refused("\n  ".join(f.message for f in failed), failed[0].fix)


class CapacityDriver(Driver):
    """Inputs: see `Needs`. Fails if the cloud cannot meet them."""

    replace_keys = frozenset({"cloud", "region"})

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Check that the cloud can meet all needs."""
        _require(Needs.model_validate(inputs), None, [])
        return "capacity", {}

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Return an empty result: there is no resource."""
        return {}

    def update(self, id: str, olds: Properties, news: Properties) -> dict[str, Any]:  # noqa: A002
        """Check that the cloud can meet the additional needs."""
        needs, held = Needs.model_validate(news), Needs.model_validate(olds)
        _require(needs, held, shrunk(held, needs))
        return {}

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Remove nothing."""


class LookupDriver(Driver):
    """Inputs: cloud, region, name of an image or external network.

    Pins the id: another image may get the name later.
    """

    def __init__(self, kind: str) -> None:
        self._is_image = kind == "image"

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Return the id of the name."""
        connection, name = cloud.connect(inputs.get("cloud"), inputs.get("region")), inputs["name"]
        with cloud.errors(f"look for {name}"):
            look = images if self._is_image else external_networks
            what, found = "image" if self._is_image else "external network", look(connection, name)
        if len(found) != 1:
            raise Refused(one(what, name, found, []).message, "gpubed doctor CLUSTER")
        return found[0].id, {"id": found[0].id}

    def diff(self, result: Properties, olds: Properties, news: Properties) -> Change:
        """Replace the resource only for another name."""
        return Change(replace=["name"] if olds["name"] != news["name"] else [])

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Return the pinned id; existing nodes need neither the image nor the network any more."""
        return {"id": id}

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Remove nothing."""

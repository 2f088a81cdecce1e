"""Existing resources that a cluster uses: networks, routers, addresses, groups, keys, reservations.

They are checked before the first create, and never changed or deleted. Reservations are those of
Blazar (API v1), which openstacksdk does not support.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any

from openstack.connection import Connection
from pydantic import AfterValidator, BaseModel

from gpubed.backends.openstack import cloud
from gpubed.backends.openstack.config import (
    ID,
    Attachment,
    Bastion,
    NetworkOptions,
    ServerOptions,
)
from gpubed.core import reading
from gpubed.core.errors import GpubedError, PrerequisiteMissing, Refused
from gpubed.core.text import nearest_name
from gpubed.nodes import host_keys
from gpubed.nodes.allocation import Hop
from gpubed.testbeds.base import Finding

_KNOWN_HOSTS = "~/.ssh/known_hosts"
# For each kind: openstacksdk's service and noun, and the key of cluster.yml.
_KINDS = {
    "network": ("network", "networks", ""),
    "subnet": ("network", "subnets", ""),
    "router": ("network", "routers", "router"),
    "security group": ("network", "security_groups", "security_groups"),
    "server group": ("compute", "server_groups", "server_group"),
    "key pair": ("compute", "keypairs", "key_pair"),
}


@dataclass(frozen=True)
class Segment:
    """An existing network; networks and subnets are UUIDs."""

    network: str
    subnets: tuple[str, ...]
    addresses: IPv4Network | IPv6Network  # of the first subnet, by which nodes reach each other
    mtu: int


class _Reserved(BaseModel):
    id: str


Time = Annotated[datetime, AfterValidator(lambda time: time.replace(tzinfo=time.tzinfo or UTC))]


class Lease(BaseModel):
    """A lease of Blazar, which holds hosts."""

    id: str
    name: str
    status: str
    start_date: Time
    end_date: Time
    reservations: list[_Reserved] = []


class _Leases(BaseModel):
    leases: list[Lease]


def find(connection: Connection, kind: str, name: str, key: str = "", **query: Any) -> Any:
    """Return the resource of a name or UUID that the project may use.

    Raises `Refused` if there are none or several; `key` is the key of cluster.yml to correct.
    """
    service, noun, usual = _KINDS[kind]
    key = key or f"backend.{usual}"
    with cloud.errors(f"look for {kind} {name}"):
        things = list(getattr(getattr(connection, service), noun)(**query))
    project, called = connection.current_project_id, f"{kind} {name!r}"
    found = [thing for thing in things if name in (thing.id, thing.name)]
    usable = [
        thing
        for thing in found
        if getattr(thing, "project_id", None) in (None, project)
        or getattr(thing, "is_shared", False)
        or kind == "subnet"  # usable as its network is
    ]
    if len(usable) > 1:
        ids = ", ".join(thing.id for thing in usable)
        raise Refused(f"{len(usable)} {kind}s are named {name!r}: {ids}", f"write an id: {key}")
    if found and not usable:
        raise Refused(f"{called} belongs to another project, which does not share it", key)
    if not usable:
        close = nearest_name(name, sorted({str(thing.name) for thing in things if thing.name}))
        other = ", or it belongs to another project" if ID.fullmatch(name) else ""
        raise Refused(f"there is no {called}{other}; {reading.short(close)}", f"correct {key}")
    return usable[0]


def segment(connection: Connection, purpose: str, wanted: Attachment) -> Segment:
    """Return the existing network for a `purpose`, `control` or `experiment`."""
    key = f"backend.{purpose}"
    network = find(connection, "network", wanted.network or "", f"{key}.network")
    if network.is_port_security_enabled is False and wanted.port_security:
        why = f"network {network.name} has port security off: ports get no security groups there"
        raise Refused(why, f"write {key}.port_security: false, and gpubed's firewall guards nodes")
    with cloud.errors(f"list the subnets of {network.name}"):
        subnets = list(connection.network.subnets(network_id=network.id))
    others = [subnet for subnet in subnets if subnet.ip_version == 4]
    if wanted.subnet:
        of_it = {"network_id": network.id}
        first = find(connection, "subnet", wanted.subnet, f"{key}.subnet", **of_it)
    elif len(found := others or subnets) == 1:
        first = found[0]
    else:
        names = ", ".join(str(subnet.name or subnet.id) for subnet in found) or "none"
        raise Refused(
            f"network {network.name} has {len(found)} subnets to choose from: {names}",
            f"name one: {key}.subnet" if found else "take another network, or add a subnet to it",
        )
    if first.ip_version == 6 and purpose == "experiment":
        raise Refused(
            f"subnet {first.name} has IPv6 addresses: collectives use IPv4", f"another {key}.subnet"
        )
    # With IPv6 for logins, nodes also get IPv4 for downloads, if the network has it.
    more = [others[0].id] if first.ip_version == 6 and len(others) == 1 else []
    return Segment(network.id, (first.id, *more), ip_network(first.cidr), network.mtu)


def reservation(connection: Connection, id_: str) -> Lease:
    """Return the lease that a reservation belongs to."""
    if not connection.has_service("reservation"):
        why = "this cloud has no reservation service (Blazar)"
        raise Refused(why, "leave backend.reservation out")
    client: Any = connection.config.get_session_client("reservation")
    leases = reading.reply(client.get("/leases").text, "Blazar's leases").json(_Leases).leases
    fix = "correct backend.reservation"
    for lease in leases:
        held = [reserved.id for reserved in lease.reservations]
        if id_ in held:
            return lease
        if id_ == lease.id:
            fix += f": that is a lease, with the reservations {', '.join(held)}"
    raise Refused(f"this project has no reservation {id_}", fix)


def way(bastions: tuple[Bastion, ...]) -> list[dict[str, Any]]:
    """Return the hops to the head; raise PrerequisiteMissing without a bastion's host key."""
    hops = []
    for there in bastions:
        known = tuple[str, ...]()
        with suppress(reading.Missing):
            known = host_keys.keys(Path(_KNOWN_HOSTS).expanduser(), there.address, there.port)
        if not known:
            raise PrerequisiteMissing(
                f"the host key of the bastion {there.address} is not in {_KNOWN_HOSTS}",
                f"ssh -p {there.port} {there.user}@{there.address}   (once, and compare the "
                "fingerprint)",
            )
        key = str(Path(there.key).expanduser())
        hop = Hop(**there.model_dump(exclude={"key"}), host_keys=known, identity=key)
        hops.append(hop.model_dump(mode="json"))
    return hops


def findings(
    connection: Connection,
    options: NetworkOptions,
    servers: Iterable[ServerOptions],
    *,
    is_held: bool = False,
) -> list[Finding]:
    """Check all existing resources that a cluster uses.

    `is_held` tells that the cluster itself may use the floating address already.
    """
    looks = dict[str, Callable[[], Any]]()
    for purpose in ("control", "experiment"):
        wanted = getattr(options, purpose)
        if wanted.network:
            name = f"{purpose} network {wanted.network}"
            looks[name] = partial(segment, connection, purpose, wanted)
    if options.router:
        looks[f"router {options.router}"] = partial(_router, connection, options)
    if not isinstance(options.floating_ip, bool):
        address = str(options.floating_ip)
        looks[f"floating address {address}"] = partial(_floating, connection, address, is_held)
    if options.bastions:
        looks["bastion keys"] = partial(way, options.bastions)
    for server in servers:
        named: list[tuple[str, str | None]] = [
            ("security group", name) for name in server.security_groups
        ]
        named += [("key pair", server.key_pair), ("server group", server.server_group)]
        looks |= {f"{k} {name}": partial(find, connection, k, name) for k, name in named if name}
        if id_ := server.reservation:
            looks[f"reservation {id_}"] = partial(_running, connection, id_)
    found = []
    for what, look in looks.items():
        id_ = f"openstack.{what.rpartition(' ')[0]}"
        try:
            with cloud.errors(f"look for {what}"):
                look()
            found.append(Finding(id_, True, what))
        except GpubedError as error:
            fix = error.hint or "ask the cloud's operators"
            found.append(Finding(id_, False, error.message, fix))
    return found


def _router(connection: Connection, options: NetworkOptions) -> None:
    router = find(connection, "router", options.router or "")
    if options.floating_ip is not False and not router.external_gateway_info:
        raise Refused(
            f"router {router.name} leads to no external network: no floating address works",
            "another backend.router, or backend.floating_ip: false",
        )


def _floating(connection: Connection, address: str, is_held: bool) -> None:
    own = list(connection.network.ips(project_id=connection.current_project_id))
    found = next((ip for ip in own if ip.floating_ip_address == address), None)
    if found is None:
        free = ", ".join(ip.floating_ip_address for ip in own if not ip.port_id) or "none"
        raise Refused(
            f"this project has no floating address {address}; free ones: {free}",
            "correct backend.floating_ip, or: openstack floating ip create NETWORK",
        )
    if found.port_id and not is_held:
        raise Refused(
            f"floating address {address} is in use: it leads to {found.fixed_ip_address}",
            f"another backend.floating_ip, or: openstack floating ip unset --port {found.id}",
        )


def _running(connection: Connection, id_: str) -> None:
    found, now = reservation(connection, id_), datetime.now(UTC)
    if not found.start_date <= now < found.end_date or found.status in ("TERMINATED", "ERROR"):
        raise Refused(
            f"reservation {id_} holds no hosts now: its lease {found.name} is {found.status}, "
            f"from {found.start_date:%Y-%m-%d %H:%M} to {found.end_date:%Y-%m-%d %H:%M} UTC",
            f"wait, or: openstack reservation lease update --prolong-for 1d {found.id}; or "
            "another backend.reservation",
        )

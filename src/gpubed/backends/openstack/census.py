"""What exists of a cluster, asked from OpenStack itself by tags, metadata and names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from openstack.connection import Connection

from gpubed.backends.openstack import cloud, labels
from gpubed.core.errors import Refused
from gpubed.nodes.allocation import Allocation, Node
from gpubed.testbeds.base import Existing, Fault

_GONE_WITHIN_S = 300
_REBOOTED_WITHIN_S = 300
# What Nova calls a node that is as it should be, or that `up` starts.
_WORDS = {
    "ACTIVE": "ready",
    "SHUTOFF": "stopped",
    "SHELVED": "stopped",
    "SHELVED_OFFLOADED": "stopped",
}
# In any other state, the plugin reads no server at all (`Invalid power_state for instance`).
_READABLE = {*_WORDS, "BUILD", "ERROR", "MIGRATING", "PAUSED", "DELETED", "SOFT_DELETED"}
_WAY_BACK = {
    "VERIFY_RESIZE": "openstack server resize confirm {id} (or: resize revert {id})",
    "SUSPENDED": "openstack server resume {id}",
    "RESCUE": "openstack server unrescue {id}",
    "UNKNOWN": "openstack server show {id}: its host does not answer; ask the cloud's operators",
}
_ENDS = "wait until that has ended; if it does not: openstack server reboot --hard {id}"


def describe(connection: Connection, allocation: Allocation) -> dict[str, str]:
    """Return for each node whether it is ready, stopped or missing, or else Nova's word."""
    with cloud.errors("list the servers"):
        states = {server.id: server.status for server in connection.compute.servers(details=True)}
    return {node.name: _word(states.get(node.id)) for node in allocation.nodes}


def restart(connection: Connection, allocation: Allocation, node: Node) -> None:
    """Reboot a server of the cluster hard, and wait until Nova calls it active again.

    Raises:
        Refused: It is not the cluster's own, or Nova said no.
        GpubedError: It did not become active.
    """
    compute = connection.compute
    with cloud.errors(f"reboot server {node.id} of {node.name}"):
        server = compute.get_server(node.id)
        if not labels.is_own(server.metadata or {}, allocation.cluster, allocation.uuid):
            raise Refused(f"server {node.id} does not bear the mark of {allocation.cluster}")
        compute.reboot_server(server, "HARD")
        # Nova notes that it reboots before it answers; what was read before says ACTIVE still.
        compute.wait_for_server(compute.get_server(node.id), wait=_REBOOTED_WITHIN_S)


def unrefreshable(connection: Connection, cluster: str, uuid: str | None) -> Refused | None:
    """Name a server in a state in which the plugin reads none, and what brings it back.

    Args:
        connection: To the cloud.
        cluster: The cluster's name, which another one of the project may have.
        uuid: Its UUID; None where it has none yet.

    Raises:
        GpubedError: The cloud cannot be asked.
    """
    with cloud.errors("list the servers"):
        servers = list(connection.compute.servers(details=True))
    for server in servers:
        own = labels.is_own(server.metadata or {}, cluster, uuid)
        if own and server.status not in _READABLE:
            way_back = _WAY_BACK.get(server.status, _ENDS).format(id=server.id)
            return Refused(
                f"server {server.name} is in the state {server.status}, in which Pulumi's plugin "
                "reads none",
                f"{way_back}; then: gpubed up {cluster}",
            )
    return None


def faults(connection: Connection, cluster: str, uuid: str | None) -> list[Fault]:
    """Return the cluster's own servers that are in the state ERROR and have never run.

    Args:
        connection: To the cloud.
        cluster: The cluster's name, which another one of the project may have.
        uuid: Its UUID; None where it has none yet.
    """
    if uuid is None:
        return []
    with cloud.errors("list the servers that failed"):
        failed = list(connection.compute.servers(details=True, status="ERROR"))
        # A list of servers has no reasons.
        servers = [connection.compute.get_server(server.id) for server in failed]
    return [
        Fault(
            server.name.removeprefix(labels.name(cluster, uuid, "")),
            (server.fault or {}).get("message", "no reason given"),
            Existing("server", server.name, server.id, uuid),
        )
        for server in servers
        if labels.is_own(server.metadata or {}, cluster, uuid) and server.launched_at is None
    ]


def existing(connection: Connection, cluster: str) -> list[Existing]:
    """Return all that carries the cluster's name, in the order in which it can be removed."""
    found: list[Existing] = []
    for kind in labels.TYPES:
        with cloud.errors(f"list what there is of kind {kind}"):
            things = list(_listed(connection, kind, cluster))
        found += [_found(kind, cluster, *thing) for thing in sorted(things, key=lambda t: t[:3])]
    return found


def _found(kind: str, cluster: str, name: str, id_: str, uuid: str, thing: Any) -> Existing:
    if kind != "volume":
        node = name.removeprefix(labels.name(cluster, uuid, "")) if kind == "server" else ""
        return Existing(kind, name, id_, uuid, node=node)
    made = datetime.fromisoformat(thing.created_at) if thing.created_at else None
    return Existing(
        kind,
        name,
        id_,
        uuid,
        data=True,
        size=thing.size * 2**30,
        made=made if made is None or made.tzinfo else made.replace(tzinfo=UTC),
    )


def remove(connection: Connection, thing: Existing) -> None:
    """Remove one thing, and wait until it is gone; it may have gone meanwhile."""
    with cloud.errors(f"remove {thing}"):
        _REMOVERS[thing.kind](connection, thing.id)


def _listed(connection: Connection, kind: str, cluster: str) -> Iterator[tuple[str, str, str, Any]]:
    """Yield name, id (as Pulumi's state has it), UUID and the thing itself."""
    for thing, uuid in _LISTERS.get(kind, _network_things)(connection, kind, cluster):
        if uuid is not None:
            # The state knows key pairs by their names, and so does Nova.
            yield str(thing.name or thing.id), str(thing.id), uuid, thing


_Owned = Iterator[tuple[Any, str | None]]


def _network_things(connection: Connection, kind: str, cluster: str) -> _Owned:
    for thing in _of_network(connection, kind):
        yield thing, labels.uuid_of_tags(_said(thing), cluster)


def _router_interfaces(connection: Connection, _: str, cluster: str) -> _Owned:
    for router in _of_network(connection, "router"):
        for port in _interfaces(connection, router.id):
            yield port, labels.uuid_of_tags(_said(router), cluster)


def _with_metadata(connection: Connection, kind: str, cluster: str) -> _Owned:
    for thing in _servers_or_volumes(connection, kind):
        yield thing, labels.uuid_of_metadata(thing.metadata or {}, cluster)


def _with_name(connection: Connection, kind: str, cluster: str) -> _Owned:
    compute = connection.compute
    for thing in compute.keypairs() if kind == "key pair" else compute.server_groups():
        yield thing, labels.uuid_of_name(thing.name, cluster)


_LISTERS: dict[str, Callable[[Connection, str, str], _Owned]] = {
    "router interface": _router_interfaces,
    "server": _with_metadata,
    "volume": _with_metadata,
    "server group": _with_name,
    "key pair": _with_name,
}


_NETWORK = {
    "floating address": "ips",
    "router": "routers",
    "port": "ports",
    "subnet": "subnets",
    "network": "networks",
    "rule": "security_group_rules",
    "security group": "security_groups",
    "qos policy": "qos_policies",
}


def _of_network(connection: Connection, kind: str) -> Iterable[Any]:
    if kind == "qos policy" and connection.network.find_extension("qos") is None:
        return ()
    things: Iterable[Any] = getattr(connection.network, _NETWORK[kind])(
        project_id=connection.current_project_id
    )
    return things


def _said(thing: Any) -> list[str]:
    """Return tags and the words of the description: either may be all there is."""
    return [*(getattr(thing, "tags", None) or ()), *(thing.description or "").split()]


def _interfaces(connection: Connection, router: str) -> list[Any]:
    ports = connection.network.ports(device_id=router)
    return [port for port in ports if "router_interface" in port.device_owner]


def _servers_or_volumes(connection: Connection, kind: str) -> Iterable[Any]:
    if kind == "server":
        return connection.compute.servers(details=True)
    # A cloud without volumes has none of ours.
    return connection.block_storage.volumes() if connection.has_service("block-storage") else ()


def _remove_server(connection: Connection, id_: str) -> None:
    _until_gone(connection.compute, "server", id_)


def _remove_interface(connection: Connection, id_: str) -> None:
    port = connection.network.find_port(id_)
    if port is not None:
        connection.network.remove_interface_from_router(port.device_id, port=id_)


def _remove_volume(connection: Connection, id_: str) -> None:
    _until_gone(connection.block_storage, "volume", id_)


def _until_gone(proxy: Any, kind: str, id_: str) -> None:
    thing = getattr(proxy, f"find_{kind}")(id_)
    if thing is not None:
        getattr(proxy, f"delete_{kind}")(thing)
        proxy.wait_for_delete(thing, wait=_GONE_WITHIN_S)


_REMOVERS: dict[str, Callable[[Connection, str], object]] = {
    "server": _remove_server,
    "floating address": lambda c, id_: c.network.delete_ip(id_),
    "router interface": _remove_interface,
    "router": lambda c, id_: c.network.delete_router(id_),
    "port": lambda c, id_: c.network.delete_port(id_),
    "subnet": lambda c, id_: c.network.delete_subnet(id_),
    "network": lambda c, id_: c.network.delete_network(id_),
    "rule": lambda c, id_: c.network.delete_security_group_rule(id_),
    "security group": lambda c, id_: c.network.delete_security_group(id_),
    "qos policy": lambda c, id_: c.network.delete_qos_policy(id_),
    "volume": _remove_volume,
    "server group": lambda c, id_: c.compute.delete_server_group(id_),
    "key pair": lambda c, id_: c.compute.delete_keypair(id_),
}


def _word(status: str | None) -> str:
    if status is None:
        return "missing"
    return _WORDS.get(status, status.lower())

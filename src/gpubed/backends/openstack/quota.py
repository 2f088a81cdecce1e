"""A project's quota, and what is left of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from openstack import exceptions
from openstack.connection import Connection

_WORDS = {
    "instances": "server(s)",
    "cores": "CPU(s)",
    "ram": "MiB of memory",
    "ports": "port(s)",
    "networks": "network(s)",
    "subnets": "subnet(s)",
    "routers": "router(s)",
    "floating_ips": "floating address(es)",
    "security_groups": "security group(s)",
    "security_group_rules": "rule(s) of security groups",
    "keypairs": "key pair(s)",
    "server_groups": "server group(s)",
    "server_group_members": "server(s) in one server group",
    "volumes": "volume(s)",
    "gigabytes": "GiB of volumes",
}
_COMPUTE = ("instances", "cores", "ram", "keypairs", "server_groups", "server_group_members")
_NETWORK = ("ports", "networks", "subnets", "routers", "floating_ips")
_SECURITY = ("security_groups", "security_group_rules")


@dataclass(frozen=True)
class Quota:
    """How much of one thing a project may have, and has."""

    name: str
    limit: int
    used: int

    @property
    def left(self) -> int:
        """How much more there may be."""
        return max(0, self.limit - self.used)

    def shortage(self, wanted: int) -> str:
        """Return in words that too little is left."""
        return (
            f"quota: {wanted} more {_WORDS[self.name]} are wanted, "
            f"and {self.left} of {self.limit} are left"
        )


def read(connection: Connection, *, volumes: bool) -> Iterator[Quota]:
    """Return what limits a project; what has no limit is left out."""
    for quota in (*_compute(connection), *_network(connection), *_volumes(connection, volumes)):
        if quota.limit >= 0:
            yield quota


def _compute(connection: Connection) -> Iterator[Quota]:
    limits: Any = connection.compute.get_limits().absolute
    names = {"cores": "total_cores", "ram": "total_ram"}
    for name in _COMPUTE:
        key = names.get(name, name)
        if (limit := getattr(limits, key)) is not None:
            # Of key pairs and group members, no number in use is told.
            yield Quota(name, limit, getattr(limits, f"{key}_used", None) or 0)


def _network(connection: Connection) -> Iterator[Quota]:
    project = connection.current_project_id or ""
    try:
        found: Any = connection.network.get_quota(project, details=True)
    except exceptions.HttpException:
        return  # older clouds tell limits without use, which says nothing
    for name in (*_NETWORK, *_SECURITY):
        if numbers := getattr(found, name):
            used = int(numbers["used"]) + int(numbers.get("reserved", 0))
            yield Quota(name, int(numbers["limit"]), used)


def _volumes(connection: Connection, wanted: bool) -> Iterator[Quota]:
    if not wanted:
        return
    limits: Any = connection.block_storage.get_limits().absolute
    yield Quota("volumes", limits.max_total_volumes, limits.total_volumes_used)
    yield Quota("gigabytes", limits.max_total_volume_gigabytes, limits.total_gigabytes_used)

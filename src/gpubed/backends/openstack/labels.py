"""Labels of a cluster's cloud resources: tags, metadata, or names.

Network resources have tags, and a description with the same content, since a killed run may have
left them without tags. Servers and volumes have metadata. Key pairs and server groups have only
names, which end in the whole UUID.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

CLUSTER = "gpubed.cluster"
NAME = "gpubed.name"
GROUP = "gpubed.group"
KEEP = "gpubed.keep"  # of volumes that `gpubed down` leaves

# For each kind, in the order of removal: the plugin's type, and openstacksdk's service and noun.
KINDS = {
    "server": ("compute/instance:Instance", "compute", "server"),
    "floating address": ("networking/floatingIp:FloatingIp", "network", "ip"),
    # Before the router's interface, which a port with a floating address would block.
    "port": ("networking/port:Port", "network", "port"),
    "router interface": ("networking/routerInterface:RouterInterface", "network", "port"),
    "router": ("networking/router:Router", "network", "router"),
    "subnet": ("networking/subnet:Subnet", "network", "subnet"),
    "network": ("networking/network:Network", "network", "network"),
    "rule": ("networking/secGroupRule:SecGroupRule", "network", "security_group_rule"),
    "security group": ("networking/secGroup:SecGroup", "network", "security_group"),
    "qos policy": ("networking/qosPolicy:QosPolicy", "network", "qos_policy"),
    "volume": ("blockstorage/volume:Volume", "block_storage", "volume"),
    "server group": ("compute/serverGroup:ServerGroup", "compute", "server_group"),
    "key pair": ("compute/keypair:Keypair", "compute", "keypair"),
}


def metadata(cluster: str, uuid: str) -> dict[str, str]:
    """Return the metadata of servers and volumes."""
    return {CLUSTER: uuid, NAME: cluster}


def tags(cluster: str, uuid: str) -> list[str]:
    """Return the tags of network resources; at most 60 characters each."""
    return [f"{key}={value}" for key, value in metadata(cluster, uuid).items()]


def name(cluster: str, uuid: str, thing: str) -> str:
    """Return the name of a resource that is identified by its tags."""
    return f"gpubed-{cluster}-{uuid[:8]}-{thing}"


def uuid_of(thing: Any, cluster: str) -> str | None:
    """Return the UUID in a resource's labels; None if it belongs to no cluster of this name."""
    found: Mapping[str, str] | None = getattr(thing, "metadata", None)
    if found is None:
        # A killed run may have left only one of the two.
        words = [*(getattr(thing, "tags", None) or ()), *(thing.description or "").split()]
        found = dict(word.split("=", 1) for word in words if "=" in word)
    return found.get(CLUSTER, "") if found.get(NAME) == cluster else None


def uuid_of_name(found: str, cluster: str) -> str | None:
    """Return the UUID at the end of a resource's name; None if that names another cluster."""
    uuid = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    match = re.fullmatch(rf"gpubed-{re.escape(cluster)}-({uuid})", found)
    return match[1] if match else None

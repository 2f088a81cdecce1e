"""What belongs to which cluster: tags, metadata, and names where OpenStack has neither.

Networks, ports, routers and the like have tags, and a description that says the same,
since a run that is killed may have left them without tags; servers and volumes have metadata;
key pairs and server groups have only their names, so those end in the whole UUID.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

CLUSTER = "gpubed.cluster"
NAME = "gpubed.name"

# Pulumi's type of each kind that can be listed, in the order in which they can be removed.
TYPES = {
    "server": "openstack:compute/instance:Instance",
    "floating address": "openstack:networking/floatingIp:FloatingIp",
    "router interface": "openstack:networking/routerInterface:RouterInterface",
    "router": "openstack:networking/router:Router",
    "port": "openstack:networking/port:Port",
    "subnet": "openstack:networking/subnet:Subnet",
    "network": "openstack:networking/network:Network",
    "rule": "openstack:networking/secGroupRule:SecGroupRule",
    "security group": "openstack:networking/secGroup:SecGroup",
    "qos policy": "openstack:networking/qosPolicy:QosPolicy",
    "volume": "openstack:blockstorage/volume:Volume",
    "server group": "openstack:compute/serverGroup:ServerGroup",
    "key pair": "openstack:compute/keypair:Keypair",
}

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"


def tags(cluster: str, uuid: str) -> list[str]:
    """Return the tags of what can have tags; at most 60 characters each."""
    return [f"{CLUSTER}={uuid}", f"{NAME}={cluster}"]


def metadata(cluster: str, uuid: str) -> dict[str, str]:
    """Return the metadata of servers and volumes."""
    return {CLUSTER: uuid, NAME: cluster}


def name(cluster: str, uuid: str, thing: str) -> str:
    """Return the name of something that is told apart by its tags."""
    return f"gpubed-{cluster}-{uuid[:8]}-{thing}"


def whole_name(cluster: str, uuid: str) -> str:
    """Return the name of something that has nothing but its name."""
    return f"gpubed-{cluster}-{uuid}"


def uuid_of_tags(found: Iterable[str], cluster: str) -> str | None:
    """Return the UUID that tags hold; None when they are not of a cluster of this name."""
    known = dict(tag.split("=", 1) for tag in found if "=" in tag)
    return uuid_of_metadata(known, cluster)


def uuid_of_metadata(found: Mapping[str, str], cluster: str) -> str | None:
    """Return the UUID that metadata hold; None when they are not of a cluster of this name."""
    return found.get(CLUSTER, "") if found.get(NAME) == cluster else None


def is_own(found: Mapping[str, str], cluster: str, uuid: str | None) -> bool:
    """Say whether metadata are those of a cluster; of another one of its name they are not.

    Args:
        found: The metadata.
        cluster: The cluster's name.
        uuid: Its UUID; None where it has none yet, and so nothing that bears it.
    """
    return uuid is not None and uuid_of_metadata(found, cluster) == uuid


def uuid_of_name(found: str, cluster: str) -> str | None:
    """Return the UUID that a name ends in; None when it is not of a cluster of this name."""
    match = re.fullmatch(rf"gpubed-{re.escape(cluster)}-({_UUID})", found)
    return match[1] if match else None

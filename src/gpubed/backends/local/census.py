"""What exists of a cluster, by the labels that hold its name and UUID."""

from __future__ import annotations

from typing import Any

from docker import DockerClient
from docker.errors import NotFound

from gpubed.allocation import Allocation
from gpubed.backends.base import Existing
from gpubed.backends.local import daemon, ownership

# In the order in which they can be removed.
_KINDS = ("container", "network", "volume")


def describe(allocation: Allocation) -> dict[str, str]:
    """Return for each node whether it is ready, stopped or missing."""
    label = f"{ownership.CLUSTER}={allocation.uuid}"
    with daemon.errors("list the nodes"):
        found = daemon.client().containers.list(all=True, filters={"label": label})
    states = {container.id: container.status for container in found}
    return {node.name: _word(states.get(node.id)) for node in allocation.nodes}


def existing(cluster: str) -> list[Existing]:
    """Return all that carries the cluster's name; containers first, the others are in their use."""
    client = daemon.client()
    mine: dict[str, Any] = {"label": f"{ownership.NAME}={cluster}"}
    with daemon.errors("list what there is of the cluster"):
        found = [
            *(("container", c.name, c) for c in client.containers.list(all=True, filters=mine)),
            *(("network", n.name, n) for n in client.networks.list(filters=mine)),
            *(("volume", v.name, v) for v in _volumes(client, mine)),
        ]
    # Docker lists in no particular order.
    found.sort(key=lambda entry: (_KINDS.index(entry[0]), entry[1]))
    return [
        Existing(kind, str(name), str(thing.id), ownership.labels(thing).get(ownership.CLUSTER, ""))
        for kind, name, thing in found
    ]


def _volumes(client: DockerClient, mine: dict[str, Any]) -> list[Any]:
    """Return the cluster's volumes; a node's own only once the node is gone: it goes with it."""
    left = {volume.id for volume in client.volumes.list(filters={**mine, "dangling": True})}
    found = client.volumes.list(filters=mine)
    return [v for v in found if v.id in left or ownership.NODE not in ownership.labels(v)]


def remove(thing: Existing) -> None:
    """Remove one thing; it may have gone meanwhile."""
    client = daemon.client()
    collection: Any = getattr(client, f"{thing.kind}s")
    options = {"container": {"force": True, "v": True}, "volume": {"force": True}}
    with daemon.errors(f"remove {thing}"):
        try:
            collection.get(thing.id).remove(**options.get(thing.kind, {}))
        except NotFound:
            return


def _word(status: str | None) -> str:
    if status is None:
        return "missing"
    return "ready" if status == "running" else "stopped"

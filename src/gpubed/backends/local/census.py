"""What exists of a cluster, by the label that holds its UUID."""

from __future__ import annotations

from typing import Any

from gpubed.allocation import Allocation
from gpubed.backends.local import daemon, ownership


def describe(allocation: Allocation) -> dict[str, str]:
    """Return for each node whether it is ready, stopped or missing."""
    with daemon.errors("list the nodes"):
        found = daemon.client().containers.list(all=True, filters=_of(allocation.uuid))
    states = {container.id: container.status for container in found}
    return {node.name: _word(states.get(node.id)) for node in allocation.nodes}


def survivors(uuid: str) -> list[str]:
    """Return all that carries the cluster's id, as `kind name`."""
    client, mine = daemon.client(), _of(uuid)
    with daemon.errors("list what is left of the cluster"):
        found = [f"container {c.name}" for c in client.containers.list(all=True, filters=mine)]
        found += [f"network {n.name}" for n in client.networks.list(filters=mine)]
        found += [f"volume {v.name}" for v in client.volumes.list(filters=mine)]
        found += [
            f"image {i.tags[0] if i.tags else i.id}" for i in client.images.list(filters=mine)
        ]
    return sorted(found)


def release(uuid: str) -> list[str]:
    """Remove all that carries the cluster's id; containers first, the others are in their use."""
    client, mine, gone = daemon.client(), _of(uuid), []
    with daemon.errors("remove what is left of the cluster"):
        for container in client.containers.list(all=True, filters=mine):
            container.remove(force=True, v=True)
            gone.append(f"container {container.name}")
        for network in client.networks.list(filters=mine):
            network.remove()
            gone.append(f"network {network.name}")
        for volume in client.volumes.list(filters=mine):
            volume.remove(force=True)
            gone.append(f"volume {volume.name}")
    return gone


def _word(status: str | None) -> str:
    if status is None:
        return "missing"
    return "ready" if status == "running" else "stopped"


def _of(uuid: str) -> dict[str, Any]:
    return {"label": f"{ownership.CLUSTER}={uuid}"}

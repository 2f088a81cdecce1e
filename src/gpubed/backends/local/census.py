"""The Docker objects of a cluster, found by labels with its name and UUID."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any

from docker import DockerClient
from docker.errors import APIError, NotFound
from docker.models.containers import Container

from gpubed.backends.local import confinement, daemon, ownership, runtime
from gpubed.nodes.allocation import Allocation, Node
from gpubed.testbeds.base import Existing

# In the order in which they can be removed.
_KINDS = ("container", "network", "volume")


def describe(allocation: Allocation) -> dict[str, str]:
    """Return for each node whether it is ready, stopped, paused, cut (of a network) or missing."""
    label = f"{ownership.CLUSTER}={allocation.uuid}"
    with daemon.errors("list the nodes"):
        found = daemon.look().containers.list(all=True, filters={"label": label})
    known = {container.id: container for container in found}
    return {node.name: _state(node, known.get(node.id)) for node in allocation.nodes}


def at_work(uuid: str) -> set[str]:
    """Return the names of a cluster's running nodes."""
    labels = [f"{ownership.CLUSTER}={uuid}", ownership.NODE]
    with daemon.errors("list the nodes"):
        found = daemon.look().containers.list(filters={"label": labels})
    return {ownership.labels(container)[ownership.NODE] for container in found}


def existing(cluster: str) -> list[Existing]:
    """Return everything with the cluster's name; containers first, because they use the rest."""
    client = daemon.look()
    mine: dict[str, Any] = {"label": f"{ownership.NAME}={cluster}"}
    with daemon.errors("list what there is of the cluster"):
        found = [
            *(("container", c.name, c) for c in client.containers.list(all=True, filters=mine)),
            *(("network", n.name, n) for n in client.networks.list(filters=mine)),
            *(("volume", v.name, v) for v in _volumes(client, mine)),
        ]
    # Docker lists in no particular order.
    found.sort(key=lambda entry: (_KINDS.index(entry[0]), entry[1]))
    sizes = _sizes() if any(_is_data(thing) for kind, _, thing in found if kind == "volume") else {}
    return [
        Existing(
            kind,
            str(name),
            str(thing.id),
            ownership.labels(thing).get(ownership.CLUSTER, ""),
            data=kind == "volume" and _is_data(thing),
            size=sizes.get(str(name)) if kind == "volume" else None,
            made=_made(thing) if kind == "volume" else None,
            node=ownership.labels(thing).get(ownership.NODE, "") if kind == "container" else "",
            address=_address(thing) if kind == "container" else "",
        )
        for kind, name, thing in found
    ]


def _address(container: Container) -> str:
    has = ownership.labels(container)
    if ownership.NODE not in has or not runtime.is_in_use(container):
        return ""
    owner = ownership.Owner(has.get(ownership.NAME, ""), has.get(ownership.CLUSTER, ""))
    return ownership.address(container, owner.name("control"))


def _is_data(volume: Any) -> bool:
    """Return whether a volume is the cluster's; a node's volume is removed with the node."""
    return ownership.NODE not in ownership.labels(volume)


def _sizes() -> dict[str, int]:
    """Return used bytes by volume, where known: Docker serves one such request at a time."""
    try:
        rows = daemon.client().df().get("Volumes") or []
    except APIError:
        return {}
    used = {row["Name"]: (row.get("UsageData") or {}).get("Size", -1) for row in rows}
    return {name: size for name, size in used.items() if size >= 0}


def _made(volume: Any) -> datetime | None:
    with suppress(KeyError, TypeError, ValueError):
        return datetime.fromisoformat(ownership.labels(volume)[ownership.MADE])
    return None


def _volumes(client: DockerClient, mine: dict[str, Any]) -> list[Any]:
    left = {volume.id for volume in client.volumes.list(filters={**mine, "dangling": True})}
    found = client.volumes.list(filters=mine)
    return [v for v in found if v.id in left or _is_data(v)]


def remove(thing: Existing) -> None:
    """Remove a thing, if it still exists."""
    client = daemon.client()
    collection: Any = getattr(client, f"{thing.kind}s")
    options = {"container": {"force": True, "v": True}, "volume": {"force": True}}
    with daemon.errors(f"remove {thing}"):
        try:
            found = collection.get(thing.id)
            node = ownership.labels(found).get(ownership.NODE, "")
            found.remove(**options.get(thing.kind, {}))
        except NotFound:
            node = ""
        if thing.kind == "container":
            confinement.tidy(thing.uuid, node)


def _state(node: Node, container: Container | None) -> str:
    if container is None:
        return "missing"
    if container.status != "running":
        return "paused" if container.status == "paused" else "stopped"
    networks = container.attrs["NetworkSettings"]["Networks"].values()
    wanted = {node.control_address, node.experiment_address} - {None}
    return "ready" if wanted <= {network["IPAddress"] for network in networks} else "cut"

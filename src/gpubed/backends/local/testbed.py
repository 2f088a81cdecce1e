"""A cluster's Docker objects on this machine, found by labels with its name and UUID."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Any

from docker.errors import APIError, NotFound
from docker.models.containers import Container

from gpubed.backends.local import daemon, doctor, network, ownership, runtime
from gpubed.backends.local.container import tidy
from gpubed.core.errors import GpubedError
from gpubed.nodes.allocation import Allocation, Node
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.base import Existing, Finding, Identity, Testbed

# In the order of their removal.
_KINDS = ("container", "network", "volume")


class LocalTestbed(Testbed):
    """A cluster's objects at the Docker daemon of this machine."""

    def doctor(self, spec: ClusterSpec) -> list[Finding]:
        """Check Docker, disk, memory and addresses."""
        return doctor.findings(spec, self.paths)

    def describe(self, allocation: Allocation) -> dict[str, str]:
        """Return each node's state: ready, stopped, paused, cut (of a network) or missing."""
        label = f"{ownership.CLUSTER}={allocation.uuid}"
        with daemon.errors("list the nodes"):
            found = daemon.look().containers.list(all=True, filters={"label": label})
        known = {container.id: container for container in found}
        return {node.name: _state(node, known.get(node.id)) for node in allocation.nodes}

    def identity(self) -> Identity:
        """Return which Docker daemon answers."""
        return daemon.identity()

    def existing(self) -> list[Existing]:
        """Return all objects with the cluster's name; containers first, which use the others."""
        client = daemon.look()
        mine: dict[str, Any] = {"label": f"{ownership.NAME}={self.paths.name}"}
        with daemon.errors("list the cluster's objects"):
            unused = client.volumes.list(filters={**mine, "dangling": True})
            left = {volume.id for volume in unused}
            volumes = client.volumes.list(filters=mine)
            found: list[tuple[str, Any]] = [
                *(("container", c) for c in client.containers.list(all=True, filters=mine)),
                *(("network", n) for n in client.networks.list(filters=mine)),
                # The volume of a node is removed with the node.
                *(("volume", v) for v in volumes if v.id in left or _is_data(v)),
            ]
        # Docker lists in no particular order.
        found.sort(key=lambda entry: (_KINDS.index(entry[0]), entry[1].name))
        has_data = any(kind == "volume" and _is_data(thing) for kind, thing in found)
        sizes = _sizes() if has_data else {}
        return [_existing(kind, thing, sizes) for kind, thing in found]

    def remove(self, thing: Existing) -> None:
        """Remove a thing, if it still exists."""
        collection: Any = getattr(daemon.client(), f"{thing.kind}s")
        options = {"container": {"force": True, "v": True}, "volume": {"force": True}}
        with daemon.errors(f"remove {thing}"):
            node = ""
            with suppress(NotFound):
                found = collection.get(thing.id)
                node = ownership.labels(found).get(ownership.NODE, "")
                found.remove(**options.get(thing.kind, {}))
            if thing.kind == "container":
                tidy(thing.uuid, node)

    def fits(self, plan: ClusterPlan) -> list[Finding]:
        """Return which subnets and memory this machine lacks; empty if Docker does not answer."""
        with suppress(GpubedError):
            room = doctor.memory(plan, self.paths)
            return [*self.refusals(plan), *([] if room.ok else [room])]
        return []

    def refusals(self, plan: ClusterPlan) -> list[Finding]:
        """Return findings for the cluster's subnets that others use already."""
        return [finding for finding in network.subnets(plan, self.paths) if not finding.ok]


def _existing(kind: str, thing: Any, sizes: dict[str, int]) -> Existing:
    labels, name = ownership.labels(thing), str(thing.name)
    owner = ownership.Owner(labels.get(ownership.NAME, ""), labels.get(ownership.CLUSTER, ""))
    node, address, made = "", "", None
    if kind == "container":
        node = labels.get(ownership.NODE, "")
        if node and runtime.is_in_use(thing):
            address = ownership.address(thing, owner.name("control"))
    elif kind == "volume":
        with suppress(KeyError, ValueError):
            made = datetime.fromisoformat(labels[ownership.MADE])
    return Existing(
        kind,
        name,
        str(thing.id),
        owner.uuid,
        data=kind == "volume" and _is_data(thing),
        size=sizes.get(name) if kind == "volume" else None,
        made=made,
        node=node,
        address=address,
    )


def _is_data(volume: Any) -> bool:
    # The volume of a node is removed with the node.
    return ownership.NODE not in ownership.labels(volume)


def _sizes() -> dict[str, int]:
    """Return used bytes by volume, if known: Docker answers one such request at a time."""
    try:
        rows = daemon.client().df().get("Volumes") or []
    except APIError:
        return {}
    used = {row["Name"]: (row.get("UsageData") or {}).get("Size", -1) for row in rows}
    return {name: size for name, size in used.items() if size >= 0}


def _state(node: Node, container: Container | None) -> str:
    if container is None:
        return "missing"
    if container.status != "running":
        return "paused" if container.status == "paused" else "stopped"
    networks = container.attrs["NetworkSettings"]["Networks"].values()
    wanted = {node.control_address, node.experiment_address} - {None}
    return "ready" if wanted <= {network["IPAddress"] for network in networks} else "cut"

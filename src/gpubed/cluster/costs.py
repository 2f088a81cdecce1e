"""Lists what a plan removes and what is lost with it; `plan` shows it and `up` asks about it."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from gpubed.cluster.audit import Recorded
from gpubed.engines.embedded import ResourceEvent, Result
from gpubed.spec import backend_config

# Resources that hold no data.
_HARMLESS = {
    *("Image", "Key", "HostKey", "Keypair", "SecGroupRule", "Capacity", "Configuration"),
    *("QosPolicy", "QosBandwidthLimitRule"),
}

_LOSES = {
    "Node": "what is on its own disks is lost",
    "Instance": "what is on its own disks is lost",
}
_NODES = {"Node", "Instance"}
_LINKS = {"Network", "Subnet", "Port", "QosPolicy", "QosBandwidthLimitRule"}
_CHANGES = {"update", "replace", "delete-replaced"}
_VOLUME_STAYS = "the old one stays on the testbed"
_NEW_VOLUME = f"a new one takes its place, {_VOLUME_STAYS}"
_NO_VOLUME = f"{_VOLUME_STAYS}, unused, until `gpubed down` removes it"
_HOST_STAYS = "its host leaves the cluster, and what is on its disks stays"


def doomed(planned: Result) -> list[ResourceEvent]:
    """Return the steps that delete or replace anything but failed nodes; volumes come first."""
    steps = [step for step in _going(planned) if tuple(step.why) != ("failed",)]
    costly = [step for step in steps if kind_of(step) not in _HARMLESS]
    return sorted(costly, key=lambda step: kind_of(step) != "Volume")


def _going(planned: Result) -> Iterator[ResourceEvent]:
    replaced = {step.urn for step in planned.steps if step.op == "replace"}
    for step in planned.steps:
        if step.op in ("delete", "replace"):
            yield step
        elif step.op == "delete-replaced" and step.urn not in replaced:
            yield replace(step, op="delete")


def makes_nodes(planned: Result) -> bool:
    """Return whether a plan makes a node."""
    made = (step for step in planned.steps if step.op in ("create", "replace"))
    return any(kind_of(step) in _NODES for step in made)


def changes_nodes(planned: Result) -> bool:
    """Return whether a plan changes existing nodes or their links."""
    changed = (step for step in planned.steps if step.op in _CHANGES)
    return any(kind_of(step) in _NODES | _LINKS for step in changed)


def nodes_that_go(planned: Result | None) -> set[str]:
    """Return the names of the nodes that a plan deletes or replaces."""
    return {step.name for step in doomed(planned) if kind_of(step) in _NODES} if planned else set()


def lost(planned: Result, left_behind: Sequence[str]) -> list[str]:
    """Return what a plan costs, a line each: volumes first, then `left_behind` shared folders."""
    steps = doomed(planned)
    made = any(step.op in ("create", "replace") for step in planned.steps if _is_volume(step))
    volumes = [cost(step, new_volume=made) for step in steps if _is_volume(step)]
    return [*volumes, *left_behind, *(cost(step) for step in steps if kind_of(step) != "Volume")]


def beyond(lines: Sequence[str], nodes: Collection[str]) -> list[str]:
    """Return the costs that `lost` lists, without the replacement of broken `nodes`."""
    kinds, names = "|".join(sorted(_NODES)), "|".join(map(re.escape, nodes))
    node = re.compile(rf"replace (?:{kinds}) (?:{names})(?= \(|:|$)")
    return [line for line in lines if not (nodes and node.match(line))]


def gone(volumes: Sequence[Recorded]) -> list[str]:
    """Return a line for each volume that has vanished from the testbed."""
    return [
        f"the volume {volume.called} is gone; an empty one is made in its place"
        for volume in volumes
    ]


def cost(step: ResourceEvent, *, new_volume: bool = True) -> str:
    """Return what a step that deletes or replaces something costs.

    Args:
        new_volume: Whether the plan makes a new volume in place of this one.
    """
    what, why = kind_of(step), f" ({', '.join(step.why)})" if step.why else ""
    loses = _HOST_STAYS if what == "Node" and not _removes_disks(step) else _LOSES.get(what)
    if _is_volume(step):
        loses = _NEW_VOLUME if new_volume else _NO_VOLUME
    return f"{step.op} {what} {step.name}{why}" + (f": {loses}" if loses else "")


def _removes_disks(step: ResourceEvent) -> bool:
    made_by = re.search(r"::gpubed:(\w+):Cluster\$", step.urn)
    return made_by is None or backend_config.named(made_by[1]).removes_disks


def _is_volume(step: ResourceEvent) -> bool:
    return kind_of(step) == "Volume"


def kind_of(step: ResourceEvent) -> str:
    """Return the last part of a resource's type: Node, Volume."""
    return step.type.rsplit(":", 1)[-1]

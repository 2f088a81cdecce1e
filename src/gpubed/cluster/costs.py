"""What a plan takes away, and what is lost with it: what `plan` shows and `up` asks about."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from gpubed.cluster.audit import Recorded
from gpubed.engines.embedded import ResourceEvent, Result
from gpubed.spec import backend_config

# What goes and comes without anybody's loss.
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
    """Return the steps of a plan that delete or replace something; data comes first.

    A node that failed is asked for again: with it, nothing goes.
    """
    steps = [step for step in _going(planned) if tuple(step.why) != ("failed",)]
    costly = [step for step in steps if kind_of(step) not in _HARMLESS]
    return sorted(costly, key=lambda step: kind_of(step) != "Volume")


def _going(planned: Result) -> Iterator[ResourceEvent]:
    """Find what is deleted or replaced, and what goes with it and does not come again."""
    replaced = {step.urn for step in planned.steps if step.op == "replace"}
    for step in planned.steps:
        if step.op in ("delete", "replace"):
            yield step
        elif step.op == "delete-replaced" and step.urn not in replaced:
            yield replace(step, op="delete")


def makes_nodes(planned: Result) -> bool:
    """Say whether a plan makes a node, which takes an address."""
    made = (step for step in planned.steps if step.op in ("create", "replace"))
    return any(kind_of(step) in _NODES for step in made)


def changes_nodes(planned: Result) -> bool:
    """Say whether a plan changes nodes that are there, or their links."""
    changed = (step for step in planned.steps if step.op in _CHANGES)
    return any(kind_of(step) in _NODES | _LINKS for step in changed)


def nodes_that_go(planned: Result | None) -> set[str]:
    """Return the names of the nodes that a plan deletes or replaces."""
    return {step.name for step in doomed(planned) if kind_of(step) in _NODES} if planned else set()


def lost(planned: Result, left_behind: Sequence[str]) -> list[str]:
    """Say what a plan costs, a line each: volumes first, then shared folders that a node served.

    Args:
        planned: The plan.
        left_behind: What is said of such folders.
    """
    steps = doomed(planned)
    made = any(step.op in ("create", "replace") for step in planned.steps if _is_volume(step))
    volumes = [cost(step, new_volume=made) for step in steps if _is_volume(step)]
    return [*volumes, *left_behind, *(cost(step) for step in steps if kind_of(step) != "Volume")]


def beyond(lines: Sequence[str], nodes: Collection[str]) -> list[str]:
    """Return what of a plan's costs is more than these nodes, made anew with their own disks.

    Args:
        lines: What it costs, as `lost` says it, or others who ask.
        nodes: Names of nodes that are broken anyway.
    """
    kinds, names = "|".join(sorted(_NODES)), "|".join(map(re.escape, nodes))
    node = re.compile(rf"replace (?:{kinds}) (?:{names})(?= \(|:|$)")
    return [line for line in lines if not (nodes and node.match(line))]


def gone(volumes: Sequence[Recorded]) -> list[str]:
    """Say of volumes that have vanished from the testbed what takes their place, a line each."""
    return [
        f"the volume {volume.called} is gone; an empty one is made in its place"
        for volume in volumes
    ]


def cost(step: ResourceEvent, *, new_volume: bool = True) -> str:
    """Say what a step that deletes or replaces something costs.

    Args:
        step: The step.
        new_volume: Whether the plan makes a volume where this one was.
    """
    what, why = kind_of(step), f" ({', '.join(step.why)})" if step.why else ""
    loses = _HOST_STAYS if what == "Node" and not _removes_disks(step) else _LOSES.get(what)
    if _is_volume(step):
        loses = _NEW_VOLUME if new_volume else _NO_VOLUME
    return f"{step.op} {what} {step.name}{why}" + (f": {loses}" if loses else "")


def _removes_disks(step: ResourceEvent) -> bool:
    """Say whether a node's disks go with it: the specification may name another backend by now."""
    made_by = re.search(r"::gpubed:(\w+):Cluster\$", step.urn)
    return made_by is None or backend_config.named(made_by[1]).removes_disks


def _is_volume(step: ResourceEvent) -> bool:
    return kind_of(step) == "Volume"


def kind_of(step: ResourceEvent) -> str:
    """Return the last part of a resource's type: Node, Volume."""
    return step.type.rsplit(":", 1)[-1]

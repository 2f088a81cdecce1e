"""Lists what a plan removes and what is lost with it; `plan` shows it and `up` asks about it."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace

from gpubed.cluster.audit import Recorded
from gpubed.engines.embedded import ResourceEvent, Result
from gpubed.spec import backend_config

# Resources that hold no data.
_HARMLESS = {
    *("Image", "Key", "HostKey", "Keypair", "SecGroupRule", "Capacity", "Configuration"),
    *("QosPolicy", "QosBandwidthLimitRule"),
}
_NODES = {"Node", "Instance"}
_LINKS = {"Network", "Subnet", "Port", "QosPolicy", "QosBandwidthLimitRule"}
_CHANGES = {"update", "replace", "delete-replaced"}


def doomed(planned: Result) -> list[ResourceEvent]:
    """Return the steps that delete or replace anything but failed nodes; volumes come first."""
    replaced = {step.urn for step in planned.steps if step.op == "replace"}
    going = [step for step in planned.steps if step.op in ("delete", "replace")]
    going += [
        replace(step, op="delete")
        for step in planned.steps
        if step.op == "delete-replaced" and step.urn not in replaced
    ]
    steps = [step for step in going if tuple(step.why) != ("failed",)]
    costly = [step for step in steps if kind_of(step) not in _HARMLESS]
    return sorted(costly, key=lambda step: kind_of(step) != "Volume")


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
    made = {kind_of(step) for step in planned.steps if step.op in ("create", "replace")}
    volumes = [cost(step, "Volume" in made) for step in steps if kind_of(step) == "Volume"]
    return [*volumes, *left_behind, *(cost(step) for step in steps if kind_of(step) != "Volume")]


def beyond(lines: Sequence[str], nodes: Collection[str]) -> list[str]:
    """Return the costs that `lost` lists, without the replacement of broken `nodes`."""
    kinds, names = "|".join(sorted(_NODES)), "|".join(map(re.escape, nodes))
    node = re.compile(rf"replace (?:{kinds}) (?:{names})(?= \(|:|$)")
    return [line for line in lines if not (nodes and node.match(line))]


def gone(volumes: Sequence[Recorded]) -> list[str]:
    """Return a line for each volume that has vanished from the testbed."""
    return [f"the volume {v.called} is gone; an empty one is made in its place" for v in volumes]


def cost(step: ResourceEvent, new_volume: bool = True) -> str:
    """Return what a step that deletes or replaces something costs.

    `new_volume` tells whether the plan makes a new volume in place of a deleted one.
    """
    what, why = kind_of(step), f" ({', '.join(step.why)})" if step.why else ""
    loses = ": what is on its own disks is lost" if what in _NODES else ""
    made_by = re.search(r"::gpubed:(\w+):Cluster\$", step.urn)
    if what == "Node" and made_by and not backend_config.named(made_by[1]).removes_disks:
        loses = ": its host leaves the cluster, and what is on its disks stays"
    if what == "Volume" and new_volume:
        loses = ": a new one takes its place, the old one stays on the testbed"
    elif what == "Volume":
        loses = ": the old one stays on the testbed, unused, until `gpubed down` removes it"
    return f"{step.op} {what} {step.name}{why}{loses}"


def kind_of(step: ResourceEvent) -> str:
    """Return the last part of a resource's type: Node, Volume."""
    return step.type.rsplit(":", 1)[-1]

"""Lists a plan's removals and the data lost with them, which `plan` shows and `up` asks about."""

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


def destructive_steps(planned: Result) -> list[ResourceEvent]:
    """Return the steps that delete or replace anything but failed nodes; volumes come first."""
    replaced = {step.urn for step in planned.steps if step.op == "replace"}
    steps = [step for step in planned.steps if step.op in ("delete", "replace")]
    steps += [
        replace(step, op="delete")
        for step in planned.steps
        if step.op == "delete-replaced" and step.urn not in replaced
    ]
    steps = [step for step in steps if tuple(step.why) != ("failed",)]
    costly = [step for step in steps if kind_of(step) not in _HARMLESS]
    return sorted(costly, key=lambda step: kind_of(step) != "Volume")


def makes_nodes(planned: Result) -> bool:
    """Return whether a plan makes a node."""
    return any(s.op in ("create", "replace") and kind_of(s) in _NODES for s in planned.steps)


def changes_nodes(planned: Result) -> bool:
    """Return whether a plan changes existing nodes or their links."""
    return any(step.op in _CHANGES and is_of_nodes(step) for step in planned.steps)


def is_of_nodes(step: ResourceEvent) -> bool:
    """Return whether a step is one of a node or of its links."""
    return kind_of(step) in _NODES | _LINKS


def removed_nodes(planned: Result | None) -> set[str]:
    """Return the names of the nodes that a plan deletes or replaces."""
    steps = destructive_steps(planned) if planned else ()
    return {step.name for step in steps if kind_of(step) in _NODES}


def lost(planned: Result, left_behind: Sequence[str]) -> list[str]:
    """Return the losses of a plan, a line each: volumes, `left_behind` shared folders, others."""
    steps = destructive_steps(planned)
    made = {kind_of(step) for step in planned.steps if step.op in ("create", "replace")}
    volumes = [cost(step, "Volume" in made) for step in steps if kind_of(step) == "Volume"]
    return [*volumes, *left_behind, *(cost(step) for step in steps if kind_of(step) != "Volume")]


def beyond(lines: Sequence[str], nodes: Collection[str]) -> list[str]:
    """Return the lines of `lost` that are not the replacement of one of the broken `nodes`."""
    kinds, names = "|".join(sorted(_NODES)), "|".join(map(re.escape, nodes))
    node = re.compile(rf"replace (?:{kinds}) (?:{names})(?= \(|:|$)")
    return [line for line in lines if not (nodes and node.match(line))]


def gone(volumes: Sequence[Recorded]) -> list[str]:
    """Return a line for each volume that has vanished from the testbed."""
    return [f"the volume {v.called} is gone; an empty one is made in its place" for v in volumes]


def cost(step: ResourceEvent, new_volume: bool = True) -> str:
    """Describe a step that deletes or replaces a resource, and its loss.

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

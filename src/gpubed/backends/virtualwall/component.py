"""The virtualwall backend's resources as Pulumi sees them."""

from __future__ import annotations

from typing import Any

import pulumi

from gpubed.backends.component import Component
from gpubed.backends.virtualwall import rspec, shared
from gpubed.backends.virtualwall.config import of
from gpubed.spec.plan import ClusterPlan, NodePlan
from gpubed.testbeds.resources import Node, Slice

_BACKEND = "virtualwall"


class Cluster(Component):
    """One slice with all nodes and links, and each of its nodes made ready."""

    def __init__(
        self, plan: ClusterPlan, uuid: pulumi.Output[str], public_key: pulumi.Output[str]
    ) -> None:
        super().__init__(_BACKEND, plan.cluster)
        self._plan, self._uuid = plan, uuid
        inputs = slice_inputs(plan) | {"uuid": uuid, "public_key": public_key}
        self._testbed = inputs["testbed"]
        self._slice = Slice("slice", _BACKEND, inputs, self.children)
        self.grant(plan, uuid, [self._node(node).result for node in plan.nodes])

    def _node(self, node: NodePlan) -> Node:
        spec, uuid = self._plan.spec, self._uuid
        has_part, where = shared.part(spec, ""), spec.storage.shared.path
        inputs = {
            "cluster": self._plan.cluster,
            "uuid": uuid,
            "name": node.name,
            "testbed": self._testbed,
            "slice": self._slice.id,
            "granted": self._slice.result["nodes"][node.name],
            "mtu": self._plan.experiment.mtu if self._plan.experiment else None,
            "shared": {"folder": uuid.apply(lambda known: shared.part(spec, known)), "path": where}
            if has_part
            else None,
            "on_failure": node.on_failure,
        }
        return Node(node.name, _BACKEND, inputs, self.children)


def slice_inputs(plan: ClusterPlan) -> dict[str, Any]:
    """Return the inputs of a slice that the plan tells."""
    groups, hardware = {}, of(plan.spec).hardware
    for group in plan.spec.nodes:
        wanted = hardware.get(group.name)
        groups[group.name] = {
            "nodes": [node.name for node in plan.nodes if node.group == group.name],
            "min": group.least,
            "type": (wanted.type if wanted else None) or "",
            "on_failure": group.on_failure,
        }
    return {
        "cluster": plan.cluster,
        "testbed": plan.spec.backend.model_dump(mode="json", exclude_none=True),
        "request": rspec.request(plan),
        "duration": plan.spec.lease.duration,
        "groups": groups,
        "head": plan.nodes[0].name,
    }

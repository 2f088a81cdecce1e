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
        self._testbed = plan.spec.backend.model_dump(mode="json", exclude_none=True)
        inputs = {
            "cluster": plan.cluster,
            "uuid": uuid,
            "testbed": self._testbed,
            "request": rspec.request(plan),
            "public_key": public_key,
            "duration": plan.spec.lease.duration,
            "groups": groups(plan),
            "head": plan.nodes[0].name,
        }
        self._slice = Slice("slice", _BACKEND, inputs, self.children)
        self.grant(plan, uuid, [self._node(node).result for node in plan.nodes])

    def _node(self, node: NodePlan) -> Node:
        inputs = {
            "cluster": self._plan.cluster,
            "uuid": self._uuid,
            "name": node.name,
            "testbed": self._testbed,
            "slice": self._slice.id,
            "granted": self._slice.result["nodes"][node.name],
            "mtu": self._plan.experiment.mtu if self._plan.experiment else None,
            "shared": self._shared(),
            "on_failure": node.on_failure,
        }
        return Node(node.name, _BACKEND, inputs, self.children)

    def _shared(self) -> dict[str, Any] | None:
        if (folder := shared.folder(self._plan.spec)) is None:
            return None
        part = self._uuid.apply(lambda uuid: shared.part(folder, uuid))
        return {"folder": part, "path": self._plan.spec.storage.shared.path}


def groups(plan: ClusterPlan) -> dict[str, dict[str, Any]]:
    """Return the node groups as a slice's inputs name them."""
    config = of(plan.spec)
    found = {}
    for group in plan.spec.nodes:
        wanted = config.hardware.get(group.name)
        found[group.name] = {
            "nodes": [node.name for node in plan.nodes if node.group == group.name],
            "min": group.least,
            "type": (wanted.type if wanted else None) or "",
            "on_failure": group.on_failure,
        }
    return found

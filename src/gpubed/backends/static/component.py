"""The static backend's resources as Pulumi sees them: one for each host."""

from __future__ import annotations

import pulumi

from gpubed.backends.component import Component
from gpubed.backends.static.config import options
from gpubed.spec.plan import ClusterPlan, NodePlan
from gpubed.testbeds.resources import Node

_BACKEND = "static"


class Cluster(Component):
    """The hosts of one cluster."""

    def __init__(
        self, plan: ClusterPlan, uuid: pulumi.Output[str], public_key: pulumi.Output[str]
    ) -> None:
        super().__init__(_BACKEND, plan.cluster)
        config = options(plan.spec)
        access = config.model_dump(mode="json", exclude={"hosts"})

        def node(planned: NodePlan) -> Node:
            inputs = {
                "cluster": plan.cluster,
                "uuid": uuid,
                "name": planned.name,
                "host": config.hosts[planned.group][planned.index].model_dump(mode="json"),
                "config": access,
                "image": planned.image,
                "gpus": planned.gpus,
                "public_key": public_key,
                "on_failure": planned.on_failure,
            }
            return Node(planned.name, _BACKEND, inputs, self.children)

        self.grant(plan, uuid, [node(planned).result for planned in plan.nodes])

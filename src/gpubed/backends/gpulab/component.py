"""GPULab's resources as Pulumi sees them: an allocation without nodes."""

from __future__ import annotations

from typing import Any

import pulumi

from gpubed.backends.component import Component
from gpubed.nodes.allocation import Allocation, Network
from gpubed.spec.plan import ClusterPlan

_BACKEND = "gpulab"


class Cluster(Component):
    """A cluster without resources; its uuid labels the jobs."""

    def __init__(self, plan: ClusterPlan, uuid: pulumi.Output[str]) -> None:
        super().__init__(_BACKEND, plan.cluster)
        self.allocation: pulumi.Output[dict[str, Any]] = uuid.apply(
            lambda known: allocation(plan, known)
        )
        self.register_outputs({"allocation": self.allocation})


def allocation(plan: ClusterPlan, uuid: str) -> dict[str, Any]:
    """Return the data of an `Allocation` without nodes."""
    return Allocation(
        cluster=plan.cluster,
        uuid=uuid,
        backend=_BACKEND,
        nodes=(),
        control=Network(subnet=str(plan.control.subnet)),
    ).model_dump(mode="json")

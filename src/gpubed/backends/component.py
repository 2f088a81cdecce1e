"""The Pulumi component that is the parent of every backend's resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi

from gpubed.backends.granted import allocation
from gpubed.spec.plan import ClusterPlan


class Component(pulumi.ComponentResource):
    """Groups a cluster's resources under `gpubed:<backend>:Cluster`.

    Attributes:
        allocation: Resolves to the data of an `Allocation`; see `grant`.
    """

    allocation: pulumi.Output[dict[str, Any]]

    def __init__(self, backend: str, cluster: str) -> None:
        super().__init__(f"gpubed:{backend}:Cluster", cluster)

    @property
    def children(self) -> pulumi.ResourceOptions:
        """Options of every resource of the component."""
        return pulumi.ResourceOptions(parent=self)

    @property
    def retained(self) -> pulumi.ResourceOptions:
        """Options of resources that hold data: only `gpubed down` removes them, not the engine."""
        return pulumi.ResourceOptions(parent=self, retain_on_delete=True)

    def grant(
        self,
        plan: ClusterPlan,
        uuid: pulumi.Output[str],
        nodes: Sequence[pulumi.Input[Mapping[str, Any]]],
        *,
        one_host: bool = False,
        mtu: pulumi.Input[int] | None = None,
    ) -> pulumi.Output[dict[str, Any]]:
        """Set and return `allocation` from the node results, in the order of the plan's nodes."""
        self.allocation = pulumi.Output.all(uuid, mtu, *nodes).apply(
            lambda known: allocation(plan, known[0], known[2:], one_host=one_host, mtu=known[1])
        )
        self.register_outputs({"allocation": self.allocation})
        return self.allocation

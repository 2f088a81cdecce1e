"""The Pulumi component of a cluster, and the allocation that it returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pulumi

from gpubed.nodes.allocation import Allocation
from gpubed.spec.plan import ClusterPlan, NetworkPlan, NodePlan
from gpubed.testbeds.uncreated_nodes import require_enough


class Component(pulumi.ComponentResource):
    """Groups a cluster's resources under `gpubed:<backend>:Cluster`.

    Attributes:
        allocation: Resolves to the data of an `Allocation`; see `grant`.
    """

    allocation: pulumi.Output[dict[str, Any]]

    def __init__(self, backend: str, cluster: str, opts: pulumi.ResourceOptions | None) -> None:
        super().__init__(f"gpubed:{backend}:Cluster", cluster, None, opts)

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
        """Set and return `allocation` from the nodes' results; see the function `allocation`."""
        self.allocation = pulumi.Output.all(uuid, mtu, *nodes).apply(
            lambda known: allocation(plan, known[0], known[2:], one_host=one_host, mtu=known[1])
        )
        self.register_outputs({"allocation": self.allocation})
        return self.allocation

    def grant_none(
        self, plan: ClusterPlan, uuid: pulumi.Output[str]
    ) -> pulumi.Output[dict[str, Any]]:
        """Set and return an `allocation` without nodes, for a testbed that runs jobs."""
        data: dict[str, Any] = {"cluster": plan.cluster, "backend": plan.backend, "nodes": ()}
        data |= {"control": _network(plan.control)}
        self.allocation = uuid.apply(
            lambda known: Allocation.model_validate({**data, "uuid": known}).model_dump(mode="json")
        )
        self.register_outputs({"allocation": self.allocation})
        return self.allocation


def allocation(
    plan: ClusterPlan,
    uuid: str,
    results: Sequence[Mapping[str, Any]],
    *,
    one_host: bool = False,
    mtu: int | None = None,
) -> dict[str, Any]:
    """Return the data of the `Allocation` of a plan with the results of its nodes.

    Args:
        results: For each node, in the plan's order: the fields of `Node` that the plan lacks, or
            ``{"failed": reason}`` if the testbed could not give the node.
        mtu: MTU of the experiment network, if the plan leaves it to the testbed.

    Raises:
        Refused: The head failed, or fewer nodes are there than a group's `min`.
    """
    pairs = list(zip(plan.nodes, results, strict=True))
    failed = {node.name: str(result["failed"]) for node, result in pairs if "failed" in result}
    require_enough(plan, failed)
    # A single node may have no link, so no experiment network either.
    is_linked = any(result.get("experiment_address") for result in results)
    data = {
        "cluster": plan.cluster,
        "uuid": uuid,
        "backend": plan.backend,
        "nodes": [_node(node, result) for node, result in pairs if node.name not in failed],
        "control": _network(plan.control),
        "experiment": _network(plan.experiment, mtu) if plan.experiment and is_linked else None,
        "failed": [{"node": name, "reason": reason} for name, reason in failed.items()],
        "one_host": one_host,
    }
    return Allocation.model_validate(data).model_dump(mode="json")


def _node(node: NodePlan, result: Mapping[str, Any]) -> dict[str, Any]:
    given = ("id", "control_address", "host_keys", "port", "user", "via")
    return {
        "name": node.name,
        "group": node.group,
        "role": node.role,
        # `get`, because Pulumi omits None.
        "experiment_address": result.get("experiment_address"),
        "slots": node.slots,
        "gpus": node.gpus,
        "mig": node.mig,
        "shards": node.shards,
        **{key: result[key] for key in given if key in result},
    }


def _network(network: NetworkPlan, chosen: int | None = None) -> dict[str, Any]:
    mtu = chosen if network.mtu is None else network.mtu
    return {"subnet": str(network.subnet), "rate_bps": network.rate_bps, "mtu": mtu}

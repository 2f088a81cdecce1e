"""The input of checks (a cluster, and a session to each node) and their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from gpubed.checks import gpu_proof
from gpubed.core import parallel, reading
from gpubed.hardware.facts import Facts
from gpubed.nodes.allocation import Allocation, Cluster, Node
from gpubed.nodes.ssh import SSH
from gpubed.nodes.verification import Check, Result
from gpubed.spec.plan import ClusterPlan

T = TypeVar("T")


@dataclass(frozen=True)
class Context:
    """A cluster under verification."""

    cluster: Cluster
    sessions: dict[str, SSH]

    @property
    def plan(self) -> ClusterPlan:
        """The cluster's plan."""
        return self.cluster.plan

    @property
    def allocation(self) -> Allocation:
        """The granted nodes."""
        return self.cluster.allocation

    def on_each(self, function: Callable[[Node, SSH], T]) -> list[tuple[Node, T]]:
        """Call a function for all nodes in parallel; results are in the order of the nodes."""
        nodes = self.allocation.nodes
        results = parallel.each(lambda node: function(node, self.sessions[node.name]), nodes)
        return list(zip(nodes, results, strict=True))

    @cached_property
    def facts(self) -> dict[str, Facts | None]:
        """The facts of each node, by name; None if `gpubed-facts` does not answer."""
        return {node.name: facts for node, facts in self.on_each(_facts)}

    @cached_property
    def proofs(self) -> dict[str, gpu_proof.Proof]:
        """The results of computing on each node's GPUs, by node name."""
        return {node.name: found for node, found in self.on_each(gpu_proof.ask)}

    @property
    def simulated(self) -> frozenset[str]:
        """The nodes whose GPUs are simulated."""
        return frozenset(name for name, facts in self.facts.items() if facts and facts.simulated)

    @property
    def head(self) -> SSH:
        """The session to the head."""
        return self.sessions[self.allocation.head.name]


def _facts(_: Node, ssh: SSH) -> Facts | None:
    try:
        return reading.reply(ssh.run("gpubed-facts", check=False).stdout, "the facts").json(Facts)
    except reading.Unreadable:
        return None


def judged(
    id_: str,
    node: str,
    reason: str,
    value: float | str | None = None,
    limit: str = "",
    unit: str = "",
) -> Check:
    """Return the result of a check: `fail` if there is a reason, else `pass`."""
    result: Result = "fail" if reason else "pass"
    return Check(
        id=id_, node=node, result=result, value=value, unit=unit, limit=limit, reason=reason
    )


def skipped(ids: Iterable[str], reason: str, node: str = "") -> Iterator[Check]:
    """Yield skipped checks."""
    yield from (Check(id=id_, node=node, result="skip", reason=reason) for id_ in ids)

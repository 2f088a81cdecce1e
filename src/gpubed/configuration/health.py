"""Reads the health of nodes, and selects the nodes that jobs may use.

Each node checks itself and keeps the result (`gpubed-health` of role health), without a controller.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from pydantic import BaseModel, ConfigDict

from gpubed.configuration import node_lease, roles
from gpubed.core import parallel, reading
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.core.reading import Unreadable
from gpubed.nodes.allocation import Allocation, Cluster, Node
from gpubed.nodes.ssh import SSH, CommandFailed, Unreachable, greet
from gpubed.spec.plan import ClusterPlan

_PROGRAM = "sudo -n gpubed-health"
_LOOK_S = 120.0  # longer than the sum of the probes' timeouts
_SHOWN = 200  # characters of an error that a node prints instead of an answer
_PROBLEMS = 20
State = Literal["well", "failing", "quarantined", "unreachable"]


class Quarantine(BaseModel):
    """Why and since when (UTC, ISO 8601) no job starts on a node.

    `own` is true if the node quarantined itself.
    """

    model_config = ConfigDict(frozen=True)

    reason: reading.Line
    since: reading.Name
    own: bool = False  # missing in answers of former versions of the role

    @property
    def is_by_hand(self) -> bool:
        """Whether a user set the quarantine, rather than the node or the end of its lease."""
        return not (self.own or node_lease.is_reason(self.reason))


class NodeHealth(BaseModel):
    """The health of a node, with a sentence for each problem."""

    model_config = ConfigDict(frozen=True)

    node: str
    problems: tuple[str, ...] = ()
    quarantine: Quarantine | None = None
    reachable: bool = True

    @property
    def state(self) -> State:
        """The node's state; jobs use only `well` nodes."""
        if not self.reachable:
            return "unreachable"
        if self.quarantine:
            return "quarantined"
        return "failing" if self.problems else "well"

    @property
    def is_held_by_lease(self) -> bool:
        """Whether the end of its lease is the only reason why jobs do not use the node."""
        quarantine = self.quarantine
        ends = quarantine is not None and node_lease.is_reason(quarantine.reason)
        return ends and not self.problems

    @property
    def reason(self) -> str:
        """Why jobs do not use the node; empty if they do."""
        return "; ".join([*([self.quarantine.reason] if self.quarantine else []), *self.problems])


class _Answer(BaseModel):
    """A node's answer, which is not trusted and may have any length."""

    problems: tuple[reading.Line, ...] = ()
    quarantine: Quarantine | None = None


def look(paths: ClusterPaths, nodes: Iterable[Node]) -> list[NodeHealth]:
    """Return the health of nodes, asked in parallel; silent nodes are `unreachable`."""
    return parallel.each(lambda node: _look(paths, node), nodes)


def is_told(plan: ClusterPlan) -> bool:
    """Return whether the nodes of a plan check their own health."""
    return plan.spec.configure and "health" in roles.active(plan)


def unwell(cluster: Cluster) -> list[NodeHealth]:
    """Return the unhealthy nodes, which jobs skip; empty if nodes do not check their health."""
    nodes = cluster.allocation.nodes
    if not nodes or not is_told(cluster.plan):
        return []
    return [found for found in look(cluster.paths, nodes) if found.state != "well"]


def usable(cluster: Cluster) -> tuple[Cluster, list[NodeHealth]]:
    """Return the cluster without its unhealthy nodes, and the health of the latter.

    Raises:
        GpubedError: The head is unhealthy; `Unreachable` if it does not answer.
    """
    allocation = cluster.allocation
    left_out = {found.node: found for found in unwell(cluster)}
    if left_out and (head := left_out.get(allocation.head.name)):
        greet(allocation.head, cluster.paths)
        again = f"repair it, then: gpubed health {cluster.name} --requalify {head.node}"
        raise GpubedError(
            f"the head {head.node} is not well: {head.reason}",
            f"gpubed renew {cluster.name}" if head.is_held_by_lease else again,
        )
    kept = tuple(node for node in allocation.nodes if node.name not in left_out)
    usable = replace(cluster, allocation=allocation.model_copy(update={"nodes": kept}))
    return (usable if left_out else cluster), [*left_out.values()]


def quarantine(paths: ClusterPaths, allocation: Allocation, name: str, reason: str) -> None:
    """Keep jobs off a node until it is requalified."""
    with SSH(allocation.node(name), paths) as session:
        session.run(f"{_PROGRAM} quarantine %s", reason)


def requalify(paths: ClusterPaths, allocation: Allocation, name: str) -> NodeHealth:
    """End a node's quarantine if it has no problem any more; return its health."""
    node = allocation.node(name)
    with SSH(node, paths) as session:
        session.run(f"{_PROGRAM} requalify", check=False)
    return _look(paths, node)


def _look(paths: ClusterPaths, node: Node) -> NodeHealth:
    try:
        with SSH(node, paths) as session:
            return ask(session, paths, node)
    except Unreachable as error:
        return NodeHealth(node=node.name, problems=(error.headline,), reachable=False)


def ask(session: SSH, paths: ClusterPaths, node: Node) -> NodeHealth:
    """Ask a node for its health in an open session."""
    try:
        answer = session.run(f"{_PROGRAM} status", timeout=_LOOK_S, check=False)
    except CommandFailed as error:  # cut off: a GPU may hang, but the node is reachable
        return NodeHealth(node=node.name, problems=(error.headline,))
    try:
        health = reading.reply(answer.stdout, "its health").json(_Answer)
    except Unreadable:
        why = f"gpubed-health fails: {reading.tail(answer.stderr, 1, _SHOWN) or 'no output'}"
        repair = f"gpubed configure {paths.name} --tags health"
        return NodeHealth(node=node.name, problems=(f"{why}; repair: {repair}",))
    problems, more = health.problems[:_PROBLEMS], len(health.problems) - _PROBLEMS
    problems += (f"and {more} more",) if more > 0 else ()
    return NodeHealth(node=node.name, problems=problems, quarantine=health.quarantine)

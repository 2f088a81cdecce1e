"""What links carry that are held to a rate: measured before a point, by what `verify` measures."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from gpubed.checks import network, plain
from gpubed.checks.context import Context
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.ssh import SSH

Row = dict[str, Any]
"""One direction between two nodes: `src`, `dst`, and `measured_bps` in bit/s."""


def measure(cluster: Cluster) -> list[Row]:
    """Measure both directions of each link of the nodes with ranks, by a short stream.

    Nodes are measured in pairs, each in one pair at least: a link is what connects a node.

    Args:
        allocation: The nodes; its experiment network has the rate that links are held to.

    Raises:
        GpubedError: A node does not answer, or could not measure.
    """
    paths, allocation = cluster.paths, cluster.allocation
    held, nodes = allocation.experiment, allocation.with_ranks
    if held is None or held.rate_bps is None or len(nodes) < 2:
        return []
    with ExitStack() as stack:
        needed = {node.name: node for node in (allocation.head, *nodes)}
        sessions = {name: stack.enter_context(SSH(node, paths)) for name, node in needed.items()}
        return plain.in_pairs(Context(cluster, sessions), nodes, held.rate_bps)


def faults(cluster: Cluster, rows: Iterable[Row]) -> list[str]:
    """Name the links that do not carry the rate that they are held to, judged as by `verify`."""
    held = cluster.allocation.experiment
    checks = [network.link(cluster.plan, row, (held and held.rate_bps) or 0) for row in rows]
    return [
        f"link {check.node} carries {check.value} {check.unit} before the run, which must be "
        f"{check.limit}"
        for check in checks
        if check.result == "fail"
    ]

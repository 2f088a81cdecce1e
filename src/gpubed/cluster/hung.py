"""Restarts nodes that hang: silent for longer than a boot, though the testbed calls them ready.

Only testbeds that can restart nodes do so, and never while a run would be lost with a node.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence

from gpubed.cluster import condition
from gpubed.cluster.condition import Condition
from gpubed.cluster.lost_state import Approve
from gpubed.core import parallel, progress
from gpubed.core.errors import GpubedError, Locked
from gpubed.jobs.runs import at_work
from gpubed.nodes.allocation import Node
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.ssh import SSH, is_silent
from gpubed.testbeds import registry


class StaysSilent(GpubedError):
    """A restarted node still does not answer."""


def bring_back(
    cluster: Cluster,
    found: Condition,
    approve: Approve,
    *,
    spared: Collection[str] = (),
    given_time: Collection[str] = (),
) -> tuple[str, ...]:
    """Restart the nodes that hang, wait until they answer, and return their names.

    `approve` is called where the network may be at fault instead of the node. Nodes `spared` will
    be removed anyway, and those `given_time` have been silent for as long as a boot takes. Raises
    `Locked` if a run that would be lost with a node is at work, `UsageError` if a restart was not
    approved, `StaysSilent` if a node does not answer after its restart, `GpubedError` if no node
    answers, or the testbed could not restart one.
    """
    testbed = registry.bound(cluster.allocation.backend, cluster.paths)
    wanted = {node.name for node in cluster.plan.nodes} - {*spared}
    silent = [
        node
        for node in cluster.allocation.nodes
        if node.name in wanted and found.nodes[node.name] == condition.UNREACHABLE
    ]
    if not silent or not testbed.backend.restarts:
        return ()
    patience = testbed.backend.boots_within_s
    names = [node.name for node in silent]
    if {*names} <= {*given_time}:
        patience = 0.0
    else:
        message = f"{', '.join(names)}: no answer; a node that boots has {patience:g} s to give one"
        progress.emit("note", message=message)
    faults = _faults(cluster, silent, patience)
    hung = [node for node in silent if is_silent(node, faults.get(node.name))]
    if not hung:
        return ()
    listed, name = ", ".join(node.name for node in hung), cluster.name
    if found.unheard and len(hung) == len(silent):
        # The network may be at fault, and restarts would end what runs on nodes that work.
        if len(hung) > 1:
            raise GpubedError(
                f"no node of {name} answers, and {condition.NO_WAY}",
                f"where they hang, restart one there; then gpubed up {name} does the rest",
            )
        why = "no node answers, and where it works all the same, what runs on it ends"
        approve([f"restart node {listed}: {why}"])
    if run := at_work.ends_with_nodes(cluster.paths):
        raise Locked(
            f"{listed}: silent, and not restarted while run {run.run_id} is at work",
            f"wait for its end, or end it: gpubed cancel {name} {run.run_id}",
        )
    by = testbed.backend.name
    progress.emit("note", message=f"{listed}: silent, and restarted by {by}")
    parallel.each(lambda node: testbed.restart(cluster.allocation, node), hung)
    if still := _faults(cluster, hung, testbed.backend.boots_within_s):
        raise StaysSilent(
            f"{', '.join(still)}: restarted by {by}, and not to be logged in to all the same",
            condition.made_again(name),
        )
    return tuple(node.name for node in hung)


def _faults(cluster: Cluster, nodes: Sequence[Node], patience: float) -> dict[str, GpubedError]:
    deadline = time.monotonic() + patience

    def fault(node: Node) -> GpubedError | None:
        try:
            with SSH(node, cluster.paths) as ssh:
                ssh.wait_ready(max(0.0, deadline - time.monotonic()))
        except GpubedError as error:
            return error
        return None

    said = parallel.each(fault, nodes)
    return {node.name: error for node, error in zip(nodes, said, strict=True) if error}

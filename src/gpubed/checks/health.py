"""Checks that each node reports to be healthy and in use."""

from __future__ import annotations

from collections.abc import Iterator

from gpubed.checks.context import Context
from gpubed.checks.stages import Stage, at
from gpubed.configuration import health
from gpubed.nodes.verification import Check


@at(Stage.REACH)
def nodes(context: Context) -> Iterator[Check]:
    """Ask each node for what it knows of itself."""
    for found in health.look(context.cluster.paths, context.allocation.nodes):
        yield Check(
            id="health.node",
            node=found.node,
            result="pass" if found.state == "well" else "fail",
            value=found.state,
            limit="well",
            reason=found.reason,
        )

"""Verifies a cluster: runs every check and keeps every figure."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime

from gpubed.checks import stages
from gpubed.checks.context import Context
from gpubed.configuration import applied, use
from gpubed.core.errors import GpubedError, of_cluster
from gpubed.core.paths import ClusterPaths
from gpubed.core.progress import emit
from gpubed.nodes.allocation import Allocation
from gpubed.nodes.ssh import SSH
from gpubed.nodes.verification import Check, Verification
from gpubed.spec.plan import ClusterPlan


class VerificationFailed(GpubedError):
    """A cluster is not what its specification says."""

    def __init__(self, verification: Verification) -> None:
        failed = [check for check in verification.checks if check.result == "fail"]
        lines = "".join(f"\n  {c.id} {c.node}: {c.reason}" for c in failed)
        name = verification.cluster
        super().__init__(
            f"{len(failed)} of {len(verification.checks)} checks failed:{lines}",
            f"gpubed configure {name} applies all roles again, then: gpubed verify {name}",
        )
        self.verification = verification


def verify(cluster: ClusterPaths, plan: ClusterPlan, allocation: Allocation) -> Verification:
    """Run all checks.

    Raises:
        GpubedError: A node could not be reached at all.
    """
    found: list[Check] = []
    configured = applied.digest(cluster, allocation)
    with ExitStack() as stack:
        sessions = {n.name: stack.enter_context(SSH(n, cluster)) for n in allocation.nodes}
        stack.enter_context(use.measuring([*sessions.values()]))
        context = Context(cluster, plan, allocation, sessions)
        for check in stages.functions():
            # Some take a while before they have a result.
            emit("checking", subject=stages.subject(check))
            for said in check(context):
                result = _named(_honest(said, check, context), cluster.name)
                emit("check", **result.model_dump())
                found.append(result)
    return Verification(
        cluster=cluster.name,
        at=datetime.now(UTC),
        node_ids=tuple(node.id for node in allocation.nodes),
        configured=configured,
        checks=tuple(found),
    )


def _named(check: Check, cluster: str) -> Check:
    """Let the commands that a reason names be of this cluster."""
    return check.model_copy(update={"reason": of_cluster(check.reason, cluster)})


def _honest(check: Check, by: stages.CheckFunction, context: Context) -> Check:
    """Call a pass on pretended GPUs what it is."""
    pretending = check.on & context.simulated if check.on else context.simulated
    if check.result == "pass" and pretending and stages.is_about_gpus(by, check.id):
        return check.model_copy(update={"result": "simulated"})
    return check

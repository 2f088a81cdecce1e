"""Verifies a cluster: runs all checks and returns their results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime

from gpubed.checks import registry
from gpubed.checks.context import Context
from gpubed.configuration import applied, usage
from gpubed.core import reading
from gpubed.core.errors import GpubedError, of_cluster
from gpubed.core.progress import emit
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.answers import Misfit
from gpubed.nodes.ssh import SSH
from gpubed.nodes.verification import Check, Verification

_LINES, _LONGEST = 20, 1000  # lines of a reason, and characters of a line


class VerificationFailed(GpubedError):
    """Checks of a cluster failed."""

    def __init__(self, verification: Verification) -> None:
        failed = [check for check in verification.checks if check.result == "fail"]
        lines = "".join(f"\n  {c.id} {c.node}: {c.reason}" for c in failed)
        name = verification.cluster
        super().__init__(
            f"{len(failed)} of {len(verification.checks)} checks failed:{lines}",
            f"gpubed configure {name} applies all roles again, then: gpubed verify {name}",
        )
        self.verification = verification


def verify(cluster: Cluster) -> Verification:
    """Run all checks."""
    found: list[Check] = []
    configured = applied.digest(cluster.paths, cluster.allocation)
    with ExitStack() as stack:
        nodes = cluster.allocation.nodes
        sessions = {n.name: stack.enter_context(SSH(n, cluster.paths)) for n in nodes}
        stack.enter_context(usage.own([*sessions.values()]))
        context = Context(cluster, sessions)
        for check in registry.functions():
            # Before the check, which may take a while until its first result.
            emit("checking", subject=registry.subject(check))
            for raw in _results(check, context):
                result = _short(_simulated(raw, check, context), cluster.name)
                emit("check", **result.model_dump())
                found.append(result)
    return Verification(
        cluster=cluster.name,
        at=datetime.now(UTC),
        node_ids=tuple(node.id for node in cluster.allocation.nodes),
        configured=configured,
        checks=tuple(found),
    )


def _results(check: registry.CheckFunction, context: Context) -> Iterator[Check]:
    """Yield the results of a check; an answer that cannot be parsed fails only this check."""
    try:
        yield from check(context)
    except Misfit as error:
        id_ = registry.first_id(check)
        yield Check(id=id_, node=error.node, result="fail", reason=error.message)


def _short(check: Check, cluster: str) -> Check:
    """Bound the texts of a check, and name the cluster in its commands."""
    lines = of_cluster(check.reason, cluster).splitlines()
    reason = "\n".join(reading.short(line, _LONGEST) for line in lines[:_LINES])
    value = reading.short(check.value, _LONGEST) if isinstance(check.value, str) else check.value
    return check.model_copy(update={"reason": reason, "value": value})


def _simulated(check: Check, by: registry.CheckFunction, context: Context) -> Check:
    """Replace `pass` of a check on simulated GPUs by `simulated`."""
    simulated = check.on & context.simulated if check.on else context.simulated
    if check.result == "pass" and simulated and registry.is_about_gpus(by, check.id):
        return check.model_copy(update={"result": "simulated"})
    return check

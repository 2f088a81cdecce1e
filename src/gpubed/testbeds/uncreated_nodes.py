"""Records nodes that the testbed failed to make and the cluster does without.

If a driver makes the nodes, Pulumi's state has their failures (`resources.py`). A Pulumi plugin
ends the run instead: the failure is then kept in the cluster's record, and the next run of the
program leaves the node out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from gpubed.core import progress, record
from gpubed.core.errors import Refused
from gpubed.core.paths import ClusterPaths
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.base import Fault


def read(paths: ClusterPaths, plan: ClusterPlan) -> dict[str, str]:
    """Return the nodes of a plan that are left out, each with the reason."""
    noted = record.read(paths).left_out
    return {name: noted[name] for name in _policies(plan) if name in noted}


def _policies(plan: ClusterPlan) -> dict[str, str]:
    return {node.name: node.on_failure for node in plan.nodes if node.on_failure}


@contextmanager
def of_run(paths: ClusterPaths, plan: ClusterPlan) -> Iterator[Callable[[Sequence[Fault]], None]]:
    """Yield a function that records failures during a run; it raises `Refused` if too few are left.

    Failures of nodes to be requested again are forgotten before and after the run.
    """
    policies, asked_again = _policies(plan), set[str]()

    def add(faults: Sequence[Fault]) -> None:
        noted = read(paths, plan)
        for fault in faults:
            again = policies.get(fault.node) == "replace" and fault.node not in asked_again
            if again:
                asked_again.add(fault.node)
            else:
                noted[fault.node] = fault.reason
            then = "it is asked for again" if again else "it is left out"
            progress.emit("note", message=f"{fault.node} failed: {fault.reason} ({then})")
        require_enough(plan, noted)
        write(noted)

    def forget() -> None:
        """Forget nodes to request again; forget all failures if too few nodes would be left."""
        kept = {n: why for n, why in read(paths, plan).items() if policies[n] == "leave_out"}
        try:
            require_enough(plan, kept)
        except Refused:
            kept = {}
        write(kept)

    def write(noted: dict[str, str]) -> None:
        if noted != record.read(paths).left_out:
            with record.changed(paths) as known:
                known.left_out = noted

    forget()
    try:
        yield add
    finally:
        forget()


def require_enough(plan: ClusterPlan, failed: Mapping[str, str]) -> None:
    """Raise `Refused` without the head or a group's `min` nodes; `failed` has the reasons."""
    head = plan.nodes[0].name
    reasons = "".join(f"\n  {name}: {reason}" for name, reason in failed.items())
    if head in failed:
        raise Refused(f"the testbed could not give the head:{reasons}")
    for group in plan.spec.nodes:
        left = sum(n.group == group.name and n.name not in failed for n in plan.nodes)
        if left < group.least:
            raise Refused(
                f"{left} of {group.count} nodes of group {group.name!r} are there, "
                f"at least {group.least} are needed:{reasons}",
                f"gpubed resources {plan.cluster}",
            )

"""A cluster as it is now, for who looks at it again and again: whatever is edited meanwhile."""

from __future__ import annotations

from collections.abc import Callable

from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.nodes import allocation as allocations
from gpubed.nodes.allocation import Allocation
from gpubed.nodes.cluster import Cluster
from gpubed.spec.clusterspec import spec_backend
from gpubed.spec.plan import ClusterPlan, plan
from gpubed.testbeds import registry
from gpubed.testbeds.specification import load_plan


def load(
    paths: ClusterPaths,
    tell: Callable[[str], None] = lambda _what: None,
    *,
    granted: Allocation | None = None,
) -> Cluster:
    """Return what is granted for a cluster, and what it is to be.

    Args:
        tell: Is told where what was applied last counts, since the file says no such.
        granted: What is granted, where that is known; None for what its file says.

    Raises:
        NotUp: Nothing is granted.
        GpubedError: What is granted, or what was applied last, cannot be read.
    """
    allocation = granted or allocations.load(paths.allocation)
    wanted = _wanted(paths, allocation.backend)
    if wanted is None:
        tell(f"{paths.spec} cannot be used as it is now: what was applied last counts")
        wanted = plan(registry.reach(allocation.backend, paths).applied())
    return Cluster(paths, wanted, allocation)


def _wanted(paths: ClusterPaths, backend: str) -> ClusterPlan | None:
    """Return what it is to be; None where the file says no such."""
    try:
        found = load_plan(paths.spec)
    except UsageError:
        return None  # somebody is writing it, perhaps
    return found if spec_backend(found.spec) == backend else None

"""A cluster as it is now, for who looks at it again and again: whatever is edited meanwhile."""

from __future__ import annotations

from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.nodes import allocation as allocations
from gpubed.nodes.cluster import Cluster
from gpubed.spec.clusterspec import spec_backend
from gpubed.spec.plan import ClusterPlan, plan
from gpubed.testbeds import registry
from gpubed.testbeds.specification import load_plan


def load(paths: ClusterPaths) -> Cluster:
    """Return what is granted for a cluster, and what it is to be.

    Raises:
        NotUp: Nothing is granted.
        GpubedError: What is granted, or what was applied last, cannot be read.
    """
    allocation = allocations.load(paths.allocation)
    return Cluster(paths, _wanted(paths, allocation.backend), allocation)


def _wanted(paths: ClusterPaths, backend: str) -> ClusterPlan:
    """Return what it is to be; what was applied last where the file says no such."""
    try:
        found = load_plan(paths.spec)
        if spec_backend(found.spec) == backend:
            return found
    except UsageError:
        pass  # somebody is writing it, perhaps
    return plan(registry.reach(backend, paths).applied())

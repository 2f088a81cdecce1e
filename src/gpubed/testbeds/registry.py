"""Finds a testbed by its name: its kind, how a cluster reaches it, and itself as the cluster's."""

from __future__ import annotations

from gpubed.core.paths import ClusterPaths
from gpubed.testbeds import specification
from gpubed.testbeds.base import Testbed
from gpubed.testbeds.kinds import backend
from gpubed.testbeds.reach import Reach

__all__ = ["backend", "bound", "reach"]


def bound(name: str, paths: ClusterPaths) -> Testbed:
    """Return the testbed of that name as a cluster sees it; nothing is read or asked yet.

    Raises:
        UsageError: There is no such backend.
    """
    return backend(name).bind(reach(name, paths), paths)


def reach(name: str, paths: ClusterPaths) -> Reach:
    """Return how a cluster reaches the testbed of that name."""
    return Reach(name, paths, specification.check)

"""A cluster with granted nodes as one value."""

from __future__ import annotations

from dataclasses import dataclass

from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Allocation
from gpubed.spec.plan import ClusterPlan


@dataclass(frozen=True)
class Cluster:
    """The paths, the plan and the allocation of a cluster whose nodes are granted.

    For work on some of the nodes, the allocation holds only these.
    """

    paths: ClusterPaths
    plan: ClusterPlan
    allocation: Allocation

    @property
    def name(self) -> str:
        """The cluster's name."""
        return self.paths.name

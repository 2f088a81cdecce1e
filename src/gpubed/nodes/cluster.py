"""A cluster as one value, for all that is done with it once its nodes are granted."""

from __future__ import annotations

from dataclasses import dataclass

from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Allocation
from gpubed.spec.plan import ClusterPlan


@dataclass(frozen=True)
class Cluster:
    """A cluster whose nodes are granted: where its files are, what was planned, what was given.

    What concerns a part of its nodes only gets one that was given no more than these.
    """

    paths: ClusterPaths
    plan: ClusterPlan
    allocation: Allocation

    @property
    def name(self) -> str:
        """What its owner calls it."""
        return self.paths.name

"""What whole clusters with GPUs came to: kept in tests/gpu_results.json.

Whoever brings a cluster with GPUs up and verifies it keeps the outcome here; `make docs`
writes it into docs/reference/gpu.md. `digest` tells what was tested: the roles that GPUs
need, and for simulated ones also the simulation.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import simulated_gpus

# docs/gpu.py runs this file by itself.
sys.path.insert(0, str(Path(__file__).parents[1]))

from support import results
from support.results import ROOT, Outcome, Results

RESULTS = ROOT / "tests" / "gpu_results.json"
ROLES = (
    "cuda",
    "hardware",
    "health",
    "horovod",
    "nccl",
    "nvidia_container_toolkit",
    "nvidia_driver",
)
Way = Literal["real", "simulated"]


@dataclass(frozen=True)
class Cluster:
    """Nodes with GPUs of a model, under a recipe and an operating system."""

    model: str
    recipe: str
    image: str
    way: Way

    def __str__(self) -> str:
        return f"{self.way} {self.model} with {self.recipe} on {self.image}"

    @property
    def digest(self) -> str:
        """Tell what was tested from what it was before."""
        folders = [ROOT / "roles" / role for role in ROLES]
        folders += [simulated_gpus.IMAGE] if self.way == "simulated" else []
        # What a node of another distribution would have read was not tested here.
        unread = [] if self.image.startswith("ubuntu") else ["Ubuntu.yml"]
        return results.digest(folders, without=("molecule", "README.md", *unread))


def keep(cluster: Cluster, *, passed: bool, seconds: float) -> None:
    """Remember an outcome, and write it down."""
    Results(RESULTS).keep(cluster, Outcome(passed, round(seconds), cluster.digest))


def described(model: str, recipe: str, image: str) -> str:
    """Say how far it was tested: on real GPUs, on simulated ones, or not at all."""
    kept, ways = Results(RESULTS), ("real", "simulated")
    clusters = [Cluster(model, recipe, image, way) for way in ways]
    said = [
        f"{cluster.way}: {outcome.described(cluster.digest)}"
        for cluster in clusters
        if (outcome := kept.of(cluster))
    ]
    return "; ".join(said) or "untested"

"""What whole clusters with GPUs came to: kept in tests/gpu_results.json.

Whoever brings a cluster with GPUs up and verifies it keeps the outcome here; `make docs`
writes it into docs/reference/gpu.md. `digest` tells what was tested: the roles that GPUs
need, and for simulated ones also the simulation.
"""

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[2]
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
        folders += [ROOT / "templates" / "simulation"] if self.way == "simulated" else []
        found = hashlib.sha256()
        for file in sorted(file for folder in folders for file in folder.rglob("*")):
            if file.is_file() and not {"__pycache__", "molecule"} & set(file.parts):
                found.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
        return found.hexdigest()[:12]


@dataclass(frozen=True)
class Outcome:
    """What came of it: `up`, `verify` and a job, in seconds."""

    passed: bool
    seconds: int
    digest: str


def load() -> dict[str, Outcome]:
    """Return all outcomes so far."""
    if not RESULTS.exists():
        return {}
    kept = json.loads(RESULTS.read_text(encoding="utf-8"))
    return {cluster: Outcome(**outcome) for cluster, outcome in kept.items()}


def keep(cluster: Cluster, *, passed: bool, seconds: float) -> None:
    """Remember an outcome, and write it down."""
    found = load() | {str(cluster): Outcome(passed, round(seconds), cluster.digest)}
    kept = {name: asdict(found[name]) for name in sorted(found)}
    RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def described(model: str, recipe: str, image: str) -> str:
    """Say how far it was tested: on real GPUs, on simulated ones, or not at all."""
    found, said = load(), []
    ways: tuple[Way, ...] = ("real", "simulated")
    for cluster in (Cluster(model, recipe, image, way) for way in ways):
        if outcome := found.get(str(cluster)):
            since = "" if outcome.digest == cluster.digest else ", changed since"
            said.append(f"{cluster.way}: {'passed' if outcome.passed else 'failed'}{since}")
    return "; ".join(said) or "untested"

"""Verification: what was checked on a cluster, with every figure."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from gpubed import reading
from gpubed.allocation import Allocation
from gpubed.inventory import write_if_changed
from gpubed.units import Moment

Result = Literal["pass", "fail", "skip", "simulated"]

# Checks that speak of GPUs, besides all that are called `gpu.*`.
_ABOUT_GPUS = {
    "docker.gpus",
    "hardware.identified",
    "health.node",
    "recipe.driver",
    "recipe.gpus",
    "slurm.gpus",
}


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Check(_Model):
    """One check on one node (or between nodes, or of the cluster).

    Attributes:
        id: Dotted name, stable.
        node: Node name, `a>b` for a link, or empty for the cluster.
        result: A skip always has a reason; so has a failure. What went well on GPUs that a
            node only pretends to have is `simulated`, never a pass.
        value: What was measured, in `unit`.
        limit: What it had to be, in words or in `unit`.
    """

    id: str
    node: str = ""
    result: Result
    value: int | float | str | None = None
    unit: str = ""
    limit: str = ""
    reason: str = ""

    @property
    def about_gpus(self) -> bool:
        """Whether it speaks of GPUs, so that pretended ones cannot pass it."""
        return self.id.startswith("gpu.") or self.id in _ABOUT_GPUS

    @property
    def on(self) -> frozenset[str]:
        """The nodes that it was made on; none are all of the cluster."""
        return frozenset(self.node.split(">")) if self.node else frozenset()


class Verification(_Model):
    """All checks of one verification.

    Attributes:
        node_ids: The nodes it covered; a replaced node has a new id.
    """

    version: Literal[1] = 1
    cluster: str
    at: Moment
    node_ids: tuple[str, ...]
    checks: tuple[Check, ...]

    @classmethod
    def last(cls, path: Path) -> Verification | None:
        """Return the last verification, or None when there is none.

        Raises:
            Unreadable: There is one, and it cannot be read.
        """
        try:
            return reading.file(path, f"gpubed verify {path.parent.name}").json(cls)
        except reading.Missing:
            return None

    def save(self, path: Path) -> None:
        """Write it where `last` finds it."""
        write_if_changed(path, self.model_dump_json(indent=2) + "\n")

    def covers(self, allocation: Allocation) -> bool:
        """Say whether it passed on exactly these nodes."""
        return not self.count("fail") and set(self.node_ids) == {n.id for n in allocation.nodes}

    def count(self, result: Result) -> int:
        """Return how many checks had this result."""
        return sum(check.result == result for check in self.checks)

    @property
    def age_s(self) -> float:
        """Seconds since it was made."""
        return (datetime.now(UTC) - self.at).total_seconds()

    def summary(self) -> dict[str, object]:
        """Return the document of `status --json`."""
        return {
            "age_s": round(self.age_s, 1),
            "passed": self.count("pass"),
            "failed": self.count("fail"),
            "skipped": self.count("skip"),
            "simulated": self.count("simulated"),
            "checks": [check.model_dump() for check in self.checks],
        }

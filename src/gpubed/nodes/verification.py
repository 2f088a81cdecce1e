"""Results of a cluster's verification: checks, measured values and limits."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from gpubed.core import files, reading
from gpubed.core.units import Moment
from gpubed.nodes.allocation import Allocation

Result = Literal["pass", "fail", "skip", "simulated"]

POSTPONED = "uses the links"
"""Part of the reason of a check that was skipped beside other work; it can be repeated later."""

_NOTHING_PROVED = 77  # Automake's exit code of a skipped test: nothing passed, nothing failed
_KEPT = ConfigDict(extra="ignore", frozen=True)  # a newer version may have written more fields


class Check(BaseModel):
    """One check on one node (or between nodes, or of the cluster)."""

    model_config = _KEPT

    id: str  # dotted name, stable
    node: str = ""  # node name, `a>b` for a link, or empty for the cluster
    # Skips and failures have a reason. A success on simulated GPUs is `simulated`, never `pass`.
    result: Result
    value: int | float | str | None = None  # the measured value, in `unit`
    unit: str = ""
    limit: str = ""  # the required value, in words or in `unit`
    reason: str = ""

    @property
    def on(self) -> frozenset[str]:
        """The nodes that were checked; empty for the whole cluster."""
        return frozenset(self.node.split(">")) if self.node else frozenset()


class Verification(BaseModel):
    """All checks of one verification."""

    model_config = _KEPT

    version: Literal[1] = 1
    cluster: str
    at: Moment
    node_ids: tuple[str, ...]  # ids of the verified nodes; a replaced node has a new id
    configured: str = ""  # digest of the roles applied at its start; formerly empty
    checks: tuple[Check, ...]

    @classmethod
    def last(cls, path: Path) -> Verification | None:
        """Return the last verification, or None when there is none."""
        try:
            return reading.file(path, f"gpubed verify {path.parent.name}").json(cls)
        except reading.Missing:
            return None

    def save(self, path: Path) -> None:
        """Write the verification to the file that `last` reads."""
        files.write_if_changed(path, self.model_dump_json(indent=2) + "\n")

    def is_of(self, allocation: Allocation, configured: str) -> bool:
        """Return whether the verification was made on exactly these nodes with this digest."""
        nodes = {node.id for node in allocation.nodes}
        return set(self.node_ids) == nodes and self.configured == configured

    def covers(self, allocation: Allocation, configured: str) -> bool:
        """Return whether it has no failure and fits nodes and digest as `is_of` says."""
        return not self.count("fail") and self.is_of(allocation, configured)

    def count(self, result: Result) -> int:
        """Return the number of checks with this result."""
        return sum(check.result == result for check in self.checks)

    @property
    def exit_code(self) -> int:
        """1 if a check failed, else 0 if any passed, else 77 (only skipped or simulated)."""
        if self.count("fail"):
            return 1
        return 0 if self.count("pass") else _NOTHING_PROVED

    @property
    def age_s(self) -> float:
        """Seconds since the verification."""
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

"""How long clusters of different sizes take: kept in a file, shown as a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support import kept

SIZES = (1, 2, 3, 10)
STEPS = ("up", "verify", "digits", "allreduce", "down")
BASE = 3  # what the others are a multiple of
KEPT = Path(__file__).parents[1] / "e2e" / "sizes.json"
HEAD = """## Clusters of 1 to 10 nodes

Containers of this project's local backend, brought up, verified, used for both example jobs and
removed, one cluster after the other, caches warm: `make test-nightly PARTS=sizes`. In brackets:
how many times what {base} nodes took in the same run.

"""

Seconds = dict[int, dict[str, float]]


def section() -> str:
    """Return what is kept, as a section of a page."""

    def body(found: dict[str, Any]) -> str:
        seconds = {int(size): steps for size, steps in found["seconds"].items()}
        return f"; each node has {found['node']}.\n\n{table(seconds)}"

    return kept.section(KEPT, HEAD.format(base=BASE), body)


def table(measured: Seconds) -> str:
    """Return a row per size and a column per step, with ratios where the base is known."""
    lines = [f"| nodes | {' | '.join(STEPS)} | all |", "| --- " * (len(STEPS) + 2) + "|"]
    base = _with_sum(measured.get(BASE, {}))
    for size, steps in sorted(measured.items()):
        cells = [_cell(seconds, base.get(step)) for step, seconds in _with_sum(steps).items()]
        lines.append(f"| {size} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _with_sum(steps: dict[str, float]) -> dict[str, float | None]:
    found: dict[str, float | None] = {step: steps.get(step) for step in STEPS}
    return {**found, "all": sum(steps.values()) if None not in found.values() else None}


def _cell(seconds: float | None, base: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds:.0f} s" + (f" ({seconds / base:.1f})" if base else "")

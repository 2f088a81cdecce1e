"""What one GPU trains per second: kept in tests/gpu/rates.json, shown as a page.

The points are those of campaign imagenet-gpu, each run once by the job's own program.
"""

from __future__ import annotations

import datetime
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "tests" / "gpu" / "rates.json"
CAMPAIGN = ROOT / "campaigns" / "imagenet-gpu.yml"
METRICS = ("images_per_s", "step_s", "step_sd_s", "compute_s", "gpu_percent", "gpu_memory_bytes")
HEAD = """# What one GPU trains per second

The points of campaign [imagenet-gpu](../../campaigns/README.md), each run once by job
[imagenet](../../jobs/imagenet/README.md) on one rank with noise for images, on a machine that
was not gpubed's: its packages are named with it, and are not a recipe's. Nothing was read,
averaged or tuned: it is what a cluster of these GPUs starts from. What is empty, or not there,
was not measured. On yours, with repetitions and intervals: `gpubed bench lab imagenet-gpu`.

"""


def points() -> Iterator[dict[str, Any]]:
    """Yield what varies of each point."""
    factors = yaml.safe_load(CAMPAIGN.read_text())["factors"]
    for values in itertools.product(*factors.values()):
        yield dict(zip(factors, values, strict=True))


def options(point: dict[str, Any]) -> list[str]:
    """Return the words of a point for the job's program."""
    settings = yaml.safe_load(CAMPAIGN.read_text())["settings"] | point
    ranks = settings.pop("ranks")
    assert ranks == 1, "one GPU has one rank"
    return [word for k, v in settings.items() for word in (f"--{k.replace('_', '-')}", str(v))]


def keep(gpu: str, driver: str, found: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Write down what a GPU came to; what others did stays."""
    known = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    known[gpu] = {
        "measured": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "driver": driver,
        "versions": found[0][1]["versions"],
        "points": [{**point, **{k: metrics[k] for k in METRICS}} for point, metrics in found],
    }
    KEPT.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")


def page() -> str:
    known = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    return HEAD + ("\n".join(map(_section, known.items())) or "Not measured yet.\n")


def _section(kept: tuple[str, dict[str, Any]]) -> str:
    gpu, found = kept
    precisions = list(dict.fromkeys(point["precision"] for point in found["points"]))
    rows: dict[tuple[str, int], dict[str, dict[str, Any]]] = {}
    for point in found["points"]:
        rows.setdefault((point["model"], point["batch_size"]), {})[point["precision"]] = point
    versions = ", ".join(f"{name} {said}" for name, said in found["versions"].items() if said)
    cells = "".join(f"| {p}, images/s | memory " for p in precisions)
    lines = [f"## {gpu}\n", f"| model | batch {cells}|", "| --- " * (2 + 2 * len(precisions)) + "|"]
    for (model, batch), by_precision in rows.items():
        figures = "".join(_cells(by_precision.get(precision)) for precision in precisions)
        lines.append(f"| {model} | {batch} {figures}|")
    spread = max(point["step_sd_s"] / point["step_s"] for point in found["points"])
    lines.append(
        f"\nMeasured {found['measured']}, driver {found['driver']}, {versions}. Steps of a point "
        f"vary by {100 * spread:.1f} % of their mean at most (standard deviation).\n"
    )
    return "\n".join(lines)


def _cells(point: dict[str, Any] | None) -> str:
    if point is None:
        return "| | "
    return f"| {point['images_per_s']:,.0f} | {point['gpu_memory_bytes'] / 1e9:.1f} GB "

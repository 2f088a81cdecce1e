"""Estimates pi from random points on all ranks and writes `metrics.json`."""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from pathlib import Path

import horovod.torch as hvd
import torch


def parse_arguments() -> argparse.Namespace:
    """Reads the command line; gpubed gives each argument of job.yml."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--points", type=int, default=1_000_000, help="per rank and step")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def count_inside(points: int, device: torch.device) -> int:
    """How many of this rank's and all others' new points are inside the circle."""
    places = torch.rand(points, 2, device=device)
    mine = (places.square().sum(dim=1) <= 1).sum()
    return int(hvd.allreduce(mine, op=hvd.Sum, name="inside"))


def main() -> None:
    """Runs one rank; all ranks run the same program."""
    arguments = parse_arguments()
    hvd.init()
    # The device that gpubed chose for this rank.
    device = torch.device(os.environ.get("GPUBED_DEVICE", "cpu"))
    torch.manual_seed(arguments.seed * hvd.size() + hvd.rank())  # other points on each rank
    started, inside = time.perf_counter(), 0
    for step in range(arguments.steps):
        inside += count_inside(arguments.points, device)
        if hvd.rank() == 0:
            # A line of this form is shown as progress, with the time left.
            print(f"progress: {step + 1}/{arguments.steps} steps", flush=True)
    points = arguments.steps * arguments.points * hvd.size()
    if hvd.rank() == 0:
        write(4 * inside / points, points / (time.perf_counter() - started), device)
    hvd.shutdown()


def write(pi: float, rate: float, device: torch.device) -> None:
    """Writes the metrics, whole or not at all, to the run's folder."""
    metrics = {
        "pi": pi,
        "error": abs(pi - math.pi),
        "points_per_s": rate,
        "world_size": hvd.size(),
        "device": os.environ.get("GPUBED_DEVICE_NAME", str(device)),
    }
    folder = Path(os.environ.get("GPUBED_RUN_DIR", "."))
    draft = folder / ".metrics.json"
    draft.write_text(json.dumps(metrics, indent=2) + "\n")
    draft.rename(folder / "metrics.json")


if __name__ == "__main__":
    main()

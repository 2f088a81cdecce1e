"""Writes the shipped table of convolutions: `python docs/model_convolutions.py`.

Runs in an interpreter with recipe cpu's torch and torchvision. The table has, of each of
torchvision's classification models, the convolutions with stride 1 and without groups: name, input
channels, output channels, side of the output in pixels, side of the filter.
"""

from __future__ import annotations

import csv
import gzip
import io
import sys
from functools import partial
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "jobs" / "imagenet"))
import model  # noqa: E402  # the job's own


def convolutions(name: str) -> list[list[int | str]]:
    """Return the rows of a model, in the order of the forward pass."""
    try:
        with torch.device("meta"):
            network = model.make(name, 1000)
    except NotImplementedError:  # RegNets read numbers from tensors while they are made
        network = model.make(name, 1000).to("meta")
    found: list[list[int | str]] = []

    def note(place: str, part: torch.nn.Module, _given: Any, made: torch.Tensor) -> None:
        sides = made.shape[-1], part.kernel_size[-1]
        found.append([place, part.in_channels, part.out_channels, *sides])

    for place, part in network.named_modules():
        if isinstance(part, torch.nn.Conv2d) and part.groups == 1 and part.stride == (1, 1):
            part.register_forward_hook(partial(note, place))
    size = model.image_size(name, None)
    network(torch.empty(2, 3, size, size, device="meta"))
    return found


if __name__ == "__main__":
    with io.StringIO(newline="") as text:
        table = csv.writer(text, lineterminator="\n")
        table.writerow(["model", "name", "given", "made", "side", "kernel"])
        table.writerows([one, *row] for one in model.names() for row in convolutions(one))
        found = text.getvalue().encode()
    path = ROOT / "src" / "gpubed" / "prediction" / "data" / "convolutions.csv.gz"
    path.write_bytes(gzip.compress(found, 9, mtime=0))

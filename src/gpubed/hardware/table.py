"""Data about NVIDIA's GPUs, which `gpubed-facts` reads on nodes, too."""

from __future__ import annotations

import re
from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict

from gpubed.core import reading
from gpubed.core.paths import assets


class Generation(BaseModel):
    """The drivers and the CUDA versions that serve a generation of GPUs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    first_branch: int  # the oldest driver branch that serves it
    last_branch: int | None  # the newest branch that serves it; None if new branches still do
    open_module: Literal["no", "yes", "only"]  # whether NVIDIA's open module serves it
    last_cuda: int | None  # the newest CUDA major version with code for it; None if new ones have


class Chip(BaseModel):
    """The GPUs with device ids from `first` to `last`, hexadecimal."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    first: str
    last: str
    chip: str
    generation: str
    compute_capability: str


class Cut(BaseModel):
    """The GPUs with a name in which `name`, a pattern, is found."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    profiles: dict[str, int]  # how many slices of a MIG profile a GPU has room for


class Table(BaseModel):
    """The part of the file that gpubed reads."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    generations: dict[str, Generation]
    open_default: int  # the first branch that prefers the open kernel module
    cuda: dict[int, int]  # the oldest driver branch for a CUDA major version
    nvlink5: frozenset[str]  # chips whose NVSwitches are not on the PCI bus
    nvlink5_board: int  # how many of these are on a baseboard with NVSwitches
    nvswitches: tuple[str, ...]  # PCI device ids of NVSwitches that need Fabric Manager
    mig: tuple[Cut, ...]  # GPUs that can be cut; of several that fit, the first counts
    chips: tuple[Chip, ...]  # by device id; of several that fit, the first counts


@cache
def table() -> Table:
    """Return the content of the file."""
    path = assets() / "roles" / "hardware" / "files" / "nvidia-gpus.json"
    return reading.file(path).json(Table)


def mig_profiles(name: str) -> dict[str, int]:
    """Return how many slices of each MIG profile a GPU has room for, by its name."""
    fitting = (cut.profiles for cut in table().mig if re.search(cut.name, name))
    return next(fitting, {})


def chip_of(device_id: str) -> Chip | None:
    """Return the chip with a PCI device id (four hexadecimal digits); None if it is unknown."""
    number = int(device_id, 16)
    fitting = (c for c in table().chips if int(c.first, 16) <= number <= int(c.last, 16))
    return next(fitting, None)

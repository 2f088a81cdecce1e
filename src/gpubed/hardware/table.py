"""What is known about NVIDIA's GPUs: `roles/hardware/files/nvidia-gpus.json`.

The node looks device ids up in the same file, with `gpubed-facts`.
"""

from __future__ import annotations

from functools import cache
from typing import Literal

from pydantic import BaseModel, ConfigDict

from gpubed import paths, reading


class Generation(BaseModel):
    """What serves a generation of GPUs.

    Attributes:
        first_branch: The oldest driver branch that is of use.
        last_branch: The newest one; None while new branches still serve it.
        open_module: Whether NVIDIA's open kernel module serves it, or only that.
        last_cuda: The newest CUDA major version with code for it; None as above.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    first_branch: int
    last_branch: int | None
    open_module: Literal["no", "yes", "only"]
    last_cuda: int | None


class Table(BaseModel):
    """The part of the file that choices are made from.

    Attributes:
        open_default: The first branch that prefers the open kernel module.
        cuda: The oldest driver branch for a CUDA major version.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    generations: dict[str, Generation]
    open_default: int
    cuda: dict[int, int]


@cache
def table() -> Table:
    """Return the table."""
    path = paths.assets() / "roles" / "hardware" / "files" / "nvidia-gpus.json"
    return reading.file(path).json(Table)

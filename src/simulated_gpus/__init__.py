"""Nodes that pretend to have NVIDIA GPUs: recorded models, and the image that makes a node one.

`IMAGE` is a Docker build context; the node reads the same files of models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from simulated_gpus.image import machine

IMAGE = Path(machine.__file__).parent


class Pci(BaseModel):
    """What a model is on the PCI bus; `device` is its hexadecimal id."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    device: str


class Model(BaseModel):
    """A GPU model.

    Attributes:
        model: Its name in specifications, as `A100-SXM4-80GB`.
        name: As its driver says it.
        architecture: NVIDIA's name of the generation, as `Ampere`.
        board: What machines with it look like: a key of `boards.json`.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str
    name: str
    architecture: str
    compute_capability: str
    board: str
    pci: Pci

    @property
    def most(self) -> int:
        """How many of them a machine has room for."""
        boards = json.loads((IMAGE / "boards.json").read_text())
        return sum(len(addresses) for addresses in boards[self.board]["addresses"])

    def machine(self, gpus: int) -> dict[str, Any]:
        """Return a machine with this many of them: `gpus` and `nvswitches`, each with its `pci`.

        Raises:
            ValueError: A machine has no room for so many, or none is asked for.
        """
        content = machine.load(IMAGE / "models" / f"{self.model}.json")
        return machine.machine(content, gpus, "", cpus=[0, 1])


@cache
def models() -> Mapping[str, Model]:
    """Return the models by name."""
    files = sorted((IMAGE / "models").glob("*.json"))
    found = (Model.model_validate_json(file.read_bytes()) for file in files)
    return {model.model: model for model in found}

"""GPU models that nodes can pretend to have: `templates/simulation/models`.

The node reads the same files, with `machine.py` beside them.
"""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from gpubed.core import reading
from gpubed.core.paths import assets
from gpubed.hardware.facts import Facts
from gpubed.hardware.table import chip_of

_FOLDER = "templates/simulation"
_BOARDS = TypeAdapter(dict[str, Any])


class Pci(BaseModel):
    """What a model is on the PCI bus."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    device: str


class Model(BaseModel):
    """A GPU model.

    Attributes:
        model: Its name in specifications, as `A100-SXM4-80GB`.
        name: As its driver says it.
        architecture: The generation, as `hardware.table` calls it.
        board: What machines with it look like.
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
        return len(_addresses(self.board))

    def facts(self, gpus: int) -> Facts:
        """Return what a node with this many of them tells before it has a driver.

        Raises:
            ValueError: A machine has no room for so many, or none is asked for.
        """
        folder = assets() / _FOLDER
        made = runpy.run_path(str(folder / "machine.py"))
        content = made["load"](folder / "models" / f"{self.model}.json")
        machine = made["machine"](content, gpus, "", cpus=[0, 1])
        on_bus = {
            "device_id": self.pci.device,
            "chip": chip.chip if (chip := chip_of(self.pci.device)) else None,
            "generation": self.architecture,
            "compute_capability": self.compute_capability,
        }
        return Facts.model_validate(
            {
                "schema": "gpubed/facts/2",
                "host": "",
                "kernel": "",
                "cpus": 1,
                "memory_kib": 0,
                "gpus": [{"pci": gpu["pci"], **on_bus} for gpu in machine["gpus"]],
                "nvswitches": [switch["pci"] for switch in machine["nvswitches"]],
                "simulated": self.model,
            }
        )


class _Board(BaseModel):
    """PCI addresses of the GPUs, by socket."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    addresses: tuple[tuple[str, ...], ...] = Field(min_length=1)


@cache
def models() -> Mapping[str, Model]:
    """Return the models by name."""
    files = sorted((assets() / _FOLDER / "models").glob("*.json"))
    found = (reading.file(file).json(Model) for file in files)
    return {model.model: model for model in found}


@cache
def _addresses(board: str) -> tuple[str, ...]:
    boards = reading.file(assets() / _FOLDER / "boards.json").json(_BOARDS)
    sockets = _Board.model_validate(boards[board]).addresses
    return tuple(address for socket in sockets for address in socket)

"""What this node pretends to be, and what it remembers."""

import json
from pathlib import Path
from typing import Any

import machine

RUN = Path("/run/gpubed-simulation")
_ASKED = Path("/etc/gpubed/simulation.json")
_REMEMBERED = Path("/var/lib/gpubed-simulation/faults.json")


def simulated() -> dict[str, Any]:
    """Return the machine that the node pretends to be, as `machine.machine` does."""
    asked = json.loads(_ASKED.read_text())
    model = machine.load(machine.HERE / "models" / f"{asked['model']}.json")
    return machine.machine(model, asked["gpus"], asked["node"])


def faults() -> list[tuple[str, int]]:
    """Return the faults that there are: pairs of a name and a GPU's index."""
    if not _REMEMBERED.exists():
        return []
    return [(name, gpu) for name, gpu in json.loads(_REMEMBERED.read_text())]


def remember(found: list[tuple[str, int]]) -> None:
    """Remember the faults that there are."""
    write(_REMEMBERED, json.dumps(found))


def write(path: Path, text: str) -> None:
    """Write a file as a whole or not at all: others read it at any time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".new")
    draft.write_text(text)
    draft.rename(path)

"""The recorded GPUs against the PCI ID Repository and the table of generations."""

import json
import re
from pathlib import Path

import pytest

from support import by_path, machines, simulated

REPOSITORY = Path(__file__).parents[1] / "hardware/pci-ids-nvidia.txt"
NAMED = dict(
    line.split("  ", 1) for line in REPOSITORY.read_text().splitlines() if not line.startswith("#")
)


@pytest.fixture(scope="module")
def collector():
    return by_path.load(machines.COLLECTOR, "gpubed_facts")


@pytest.fixture(params=simulated.MODELS)
def model(request):
    return simulated.model(request.param)


def test_the_device_id_is_the_models_own(model):
    name = NAMED[model["pci"]["device"]]
    known_as = [*re.findall(r"[A-Z]{1,3}\d{2,4}", model["model"])][:1] or [model["model"][-4:]]
    assert known_as[0].removeprefix("RTX-") in name


def test_generation_and_compute_capability_are_the_tables(collector, model):
    chip = collector.chip(collector.table()["chips"], model["pci"]["device"])
    assert chip["generation"] == model["architecture"]
    assert chip["compute_capability"] == model["compute_capability"]


def test_the_memory_is_what_the_name_says_less_what_ecc_takes(model):
    said = re.search(r"(\d+)GB$", model["model"])
    gigabytes = (
        int(said.group(1))
        if said
        else {"K80": 12, "T4": 16, "4090": 24, "5090": 32}[model["model"].removeprefix("RTX-")]
    )
    assert 0.9 < model["memory"]["bytes"] / gigabytes / 2**30 < 1.03


def test_nvswitches_are_those_that_the_facts_look_for(collector):
    boards = json.loads((simulated.IMAGE / "boards.json").read_text())
    devices = [
        board["switches"]["device"] for board in list(boards.values())[1:] if "switches" in board
    ]
    known = collector.table()["nvswitches"]
    assert all(device.removeprefix("10de:") in known for device in devices if "10de" in device)

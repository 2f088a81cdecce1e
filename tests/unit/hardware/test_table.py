"""The table of GPUs against the PCI ID Repository."""

from pathlib import Path

import pytest

from gpubed.hardware.table import table
from support import by_path, machines

PREFIXES = {
    "GK": "Kepler",
    "GM": "Maxwell",
    "GP": "Pascal",
    "GV": "Volta",
    "TU": "Turing",
    "GA": "Ampere",
    "AD": "Ada",
    "GH": "Hopper",
    "GB": "Blackwell",
}
DEVICES = [
    line.split("  ", 1)
    for line in (Path(__file__).parent / "pci-ids-nvidia.txt").read_text().splitlines()
    if not line.startswith("#")
]


@pytest.fixture(scope="module")
def collector():
    return by_path.load(machines.COLLECTOR, "gpubed_facts")


def test_every_known_device_has_its_generation(collector):
    chips = collector.table()["chips"]
    wrong = [
        (device, name)
        for device, name in DEVICES
        if collector.chip(chips, device)["generation"] != PREFIXES[name[:2]]
    ]
    assert not wrong


def test_an_unknown_id_is_no_chip(collector):
    assert collector.chip(collector.table()["chips"], "fff0") == collector.UNKNOWN_CHIP


def test_every_chip_belongs_to_a_generation_that_is_described(collector):
    named = {chip["generation"] for chip in collector.table()["chips"]}
    assert named == set(table().generations) == set(PREFIXES.values())

"""The least rate that the GPUs of a node must reach together, from how they are connected.

A floor tells a broken path from a good one; it is no performance target. The shares of the physical
rate are below what others demand of whole machines: 228 GB/s of 300 on eight A100, 460 of 450 on
eight H100 (azurehpc-health-checks), 185 and 440 (oci-hpc). Without NVSwitches, NCCL uses fewer of
the links: 115 GB/s of 300 on two H100 PCIe with three bridges (NVIDIA/nccl#1161), 21.5 of 50 on two
RTX 2080 Ti with one (NVIDIA/nccl-tests#44). Rates are per direction, in byte/s. Job allreduce has
the floors between nodes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpubed.hardware.facts import GPU, Pcie

_GIGA = 1e9
# NVIDIA's data sheets, per link.
_NVLINK = {"Pascal": 20, "Volta": 25, "Turing": 25, "Ampere": 25, "Hopper": 25, "Blackwell": 50}
_NVLINK_OF_CHIP = {"GA102": 14}
# GT/s of the GPU's own PCI Express end, used if the bus does not tell the link.
_PCIE = {"Ampere": 16, "Ada": 16, "Hopper": 32, "Blackwell": 32}
_PCIE_3 = 8
_LANES = 16
_OF_SWITCHED_NVLINK = 0.6
# The pairs above sum gigabytes; the check sums less, which is a little slower.
_OF_NVLINK = 0.3
# Half at best over host memory, if GPUs cannot reach each other.
_OF_PCIE = 0.25
# All GPUs at once share bridges that a pair has for itself.
_OF_SHARED = 0.5


def pair(one: GPU, other: GPU, *, switched: bool = False) -> tuple[float, str]:
    """Return the rate that an allreduce over two GPUs of a node must reach, and their connection.

    `switched` tells whether NVSwitches connect the GPUs of this node.
    """
    link = one.links.get(f"GPU{other.index}", "")
    count = re.fullmatch(r"NV(\d+)", link)
    if count:
        generation = _NVLINK.get(one.generation or "", min(_NVLINK.values()))
        rate = _NVLINK_OF_CHIP.get(one.chip or "", generation)
        share = _OF_SWITCHED_NVLINK if switched else _OF_NVLINK
        return int(count[1]) * rate * share * _GIGA, link
    slowest, slot = min(_pcie(gpu) for gpu in (one, other))
    return slowest * _OF_PCIE, f"{link or 'PCIe'} ({slot})"


def _pcie(gpu: GPU) -> tuple[float, str]:
    if gpu.pcie:
        return gpu.pcie.rate, str(gpu.pcie)
    card = Pcie(gts=_PCIE.get(gpu.generation or "", _PCIE_3), lanes=_LANES)
    return card.rate, f"its slot does not tell; the card's {card}"


def together(gpus: Sequence[GPU], *, switched: bool = False) -> tuple[float, str]:
    """Return the rate that an allreduce over all GPUs must reach, and their slowest connection."""
    ways = [
        pair(one, other, switched=switched) for one in gpus for other in gpus if one is not other
    ]
    floor, link = min(ways)
    return (floor if link.startswith("NV") else floor * _OF_SHARED), link

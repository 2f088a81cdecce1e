"""The least that the GPUs of a node must do together, from how they are connected.

A floor tells a broken path from a good one; it is no record. Shares of the physical
rate lie below what others insist on for whole machines: 228 GB/s of 300 on eight A100,
460 of 450 on eight H100 (azurehpc-health-checks), 185 and 440 (oci-hpc).
Rates are per direction, in byte/s. What must pass between nodes, job allreduce knows.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpubed.hardware.facts import GPU

_GIGA = 1e9
# NVIDIA's data sheets, per link.
_NVLINK = {"Pascal": 20, "Volta": 25, "Turing": 25, "Ampere": 25, "Hopper": 25, "Blackwell": 50}
_NVLINK_OF_CHIP = {"GA102": 14}
# PCI Express x16 of the generation that the GPUs have: 3, 4 or 5 (PCI-SIG).
_PCIE = {"Ampere": 31.5, "Ada": 31.5, "Hopper": 63, "Blackwell": 63}
_PCIE_3 = 15.75
_OF_NVLINK = 0.6
# Over host memory, where GPUs cannot reach each other, half of it at best.
_OF_PCIE = 0.25
# All at once share bridges, which pairs have for themselves.
_OF_SHARED = 0.5


def pair(one: GPU, other: GPU) -> tuple[float, str]:
    """Return what an allreduce over two GPUs of a node must reach, and how they are connected."""
    link = one.links.get(f"GPU{other.index}", "")
    count = re.fullmatch(r"NV(\d+)", link)
    if count:
        generation = _NVLINK.get(one.generation or "", min(_NVLINK.values()))
        rate = _NVLINK_OF_CHIP.get(one.chip or "", generation)
        return int(count[1]) * rate * _OF_NVLINK * _GIGA, link
    return _PCIE.get(one.generation or "", _PCIE_3) * _OF_PCIE * _GIGA, link or "PCIe"


def together(gpus: Sequence[GPU]) -> tuple[float, str]:
    """Return what an allreduce over all GPUs of a node must reach, and the slowest way in it."""
    ways = [pair(one, other) for one in gpus for other in gpus if one is not other]
    floor, link = min(ways)
    return (floor if link.startswith("NV") else floor * _OF_SHARED), link

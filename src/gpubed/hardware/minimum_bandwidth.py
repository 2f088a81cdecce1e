"""The least allreduce rate of the GPUs of a node, by their connections, in byte/s per direction.

These floors detect broken connections; they are no performance targets. Their shares of the
physical rate are below those of other health checks: 228 GB/s of 300 on eight A100, 460 of 450 on
eight H100 (azurehpc-health-checks), 185 and 440 (oci-hpc). Without NVSwitches, NCCL uses fewer of
the links: 115 GB/s of 300 on two H100 PCIe with three bridges (NVIDIA/nccl#1161), 21.5 of 50 on two
RTX 2080 Ti with one (NVIDIA/nccl-tests#44). `gpubed.checks.network` has the floors between nodes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpubed.hardware.facts import GPU, Pcie

_GIGA = 1e9
# Rate of one NVLink in GB/s (NVIDIA's data sheets).
_NVLINK = {"Pascal": 20, "Volta": 25, "Turing": 25, "Ampere": 25, "Hopper": 25, "Blackwell": 50}
_NVLINK_OF_CHIP = {"GA102": 14}
# GT/s of the card, used if the speed of the slot is unknown.
_PCIE = {"Ampere": 16, "Ada": 16, "Hopper": 32, "Blackwell": 32}
_PCIE_3 = 8
_LANES = 16
_OF_SWITCHED_NVLINK = 0.6
# Below the pairs above, which sum gigabytes: the check sums less, and is a little slower.
_OF_NVLINK = 0.3
# Through host memory, GPUs reach half the rate at best.
_OF_PCIE = 0.25
# All GPUs at once share bridges that a single pair does not share.
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
    return card.rate, f"the card's {card}; its slot is unknown"


def together(gpus: Sequence[GPU], *, switched: bool = False) -> tuple[float, str]:
    """Return the rate that an allreduce over all GPUs must reach, and their slowest connection."""
    floor, link = min(pair(a, b, switched=switched) for a in gpus for b in gpus if a is not b)
    return (floor if link.startswith("NV") else floor * _OF_SHARED), link

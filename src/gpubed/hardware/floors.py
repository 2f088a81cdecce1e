"""The least that GPUs and links must do, from how they are connected.

A floor tells a broken path from a good one; it is no record. Shares of the physical
rate lie below what others insist on for whole machines: 228 GB/s of 300 on eight A100,
460 of 450 on eight H100 (azurehpc-health-checks), 185 and 440 (oci-hpc).
Rates are per direction, in byte/s between GPUs and bit/s between nodes.
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
# Bus bandwidth of a collective over TCP: Ethernet, IP and TCP leave 94 % to the payload.
_OF_TCP = 0.9 * 0.94
# NCCL and Gloo open one stream per neighbour where nobody tunes them, and one stream carries
# this much on any machine (NCCL's user guide, NCCL_NSOCKS_PERTHREAD, speaks of 100G networks).
_ONE_STREAM_BPS = 10e9


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


def between_nodes(rate_bps: float, rdma: float | None) -> float:
    """Return what an allreduce over the experiment network must reach, in bit/s.

    Args:
        rate_bps: The declared rate of each node's link.
        rdma: The share of it that RDMA must reach; None over TCP.
    """
    return rate_bps * rdma if rdma else min(rate_bps, _ONE_STREAM_BPS) * _OF_TCP

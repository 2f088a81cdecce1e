"""What gradients travel by between GPUs: asked for before NCCL starts, told by NCCL itself."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import transports

FOLDER = ".nccl"
# NCCL's names of its own ways between nodes (its documentation, NCCL_NET). It ends where one that
# was asked for is not there; left to itself, it goes over TCP without a word.
ASKED: dict[str, dict[str, str]] = {
    "auto": {},
    "tcp": {"NCCL_NET": "Socket"},
    "rdma": {"NCCL_NET": "IB"},
}


def choose(asked: str, device: torch.device, folder: Path) -> None:
    """Has NCCL use what was asked for, and tell in the run's folder what it uses."""
    if device.type == "cuda":
        os.environ |= ASKED[asked]
        transports.listen(folder / FOLDER)


def told(device: torch.device, folder: Path) -> str:
    """What gradients went by, such as `NET/IB/GDRDMA, P2P/CUMEM`; Gloo on CPUs goes by TCP."""
    if device.type != "cuda":
        return "TCP"
    return ", ".join(sorted(transports.told(folder / FOLDER)))


def is_tcp(told: str) -> bool:
    """Whether an interface of the node carried some of it."""
    return "TCP" in told or "NET/Socket" in told

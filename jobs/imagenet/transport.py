"""Sets what NCCL transports gradients by between GPUs, and reads what NCCL used."""

from __future__ import annotations

import os
from pathlib import Path

import torch
import transports

FOLDER = ".nccl"


def choose(asked: str, device: torch.device, folder: Path) -> None:
    """Sets NCCL's transport, and lets NCCL log to the run's folder."""
    if device.type == "cuda":
        os.environ |= transports.ASKED[asked]
        transports.listen(folder / FOLDER)


def told(device: torch.device, folder: Path) -> str:
    """The transports of gradients, such as `NET/IB/GDRDMA, P2P/CUMEM`; on CPUs, Gloo uses TCP."""
    if device.type != "cuda":
        return "TCP"
    return ", ".join(sorted(transports.told(folder / FOLDER)))


def is_tcp(told: str) -> bool:
    """Whether a network interface of the node carried any gradients."""
    return "TCP" in told or "NET/Socket" in told

"""Reads from NCCL's log which transports it uses between ranks."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

# "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA" uses the first adapter. If another rank
# drives it in this rank's place, that rank's number follows in parentheses.
VIA = re.compile(r"Channel .* via (\S+)")
NUMBER = re.compile(r"/\d+(\(\d+\))?")
ADAPTER = re.compile(r"NET/IB/(\d+)")
# NCCL's names of its network transports (its documentation, NCCL_NET). NCCL fails if a transport
# that was set is missing; without a setting, it silently falls back to TCP.
ASKED: dict[str, dict[str, str]] = {
    "auto": {},
    "tcp": {"NCCL_NET": "Socket"},
    "rdma": {"NCCL_NET": "IB"},
}


def listen(folder: Path) -> None:
    """Makes NCCL log from its start on, a file per rank."""
    folder.mkdir(exist_ok=True)
    os.environ["NCCL_DEBUG"] = "INFO"
    os.environ["NCCL_DEBUG_FILE"] = f"{folder}/%h.%p"


def told(folder: Path) -> dict[str, int]:
    """Number of channels by transport, such as P2P/CUMEM, SHM/direct/direct, NET/IB/GDRDMA."""
    return dict(Counter(NUMBER.sub("", via) for via in ways(folder)))


def adapters(folder: Path) -> int:
    """Number of RDMA adapters of a node that NCCL uses; all nodes number theirs alike."""
    return len({number for via in ways(folder) for number in ADAPTER.findall(via)})


def ways(folder: Path) -> list[str]:
    """The transport of each channel, as NCCL writes it."""
    texts = (path.read_text(errors="replace") for path in sorted(folder.glob("*")))
    return [via for text in texts for via in VIA.findall(text)]

"""Over what NCCL moves data between ranks, by its own account."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

# "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA": by the first adapter; one that
# another rank works with in this rank's place has that rank's number behind its own, in brackets.
VIA = re.compile(r"Channel .* via (\S+)")
NUMBER = re.compile(r"/\d+(\(\d+\))?")
ADAPTER = re.compile(r"NET/IB/(\d+)")


def listen(folder: Path) -> None:
    """Has NCCL tell, from its start on, a file per rank."""
    folder.mkdir(exist_ok=True)
    os.environ["NCCL_DEBUG"] = "INFO"
    os.environ["NCCL_DEBUG_FILE"] = f"{folder}/%h.%p"


def told(folder: Path) -> dict[str, int]:
    """Channels by transport, such as P2P/CUMEM, SHM/direct/direct, NET/Socket, NET/IB/GDRDMA."""
    return dict(Counter(NUMBER.sub("", via) for via in ways(folder)))


def adapters(folder: Path) -> int:
    """How many RDMA adapters of a node carry: nodes number theirs alike."""
    return len({number for via in ways(folder) for number in ADAPTER.findall(via)})


def ways(folder: Path) -> list[str]:
    """What each channel goes over, in NCCL's words."""
    texts = (path.read_text(errors="replace") for path in sorted(folder.glob("*")))
    return [via for text in texts for via in VIA.findall(text)]

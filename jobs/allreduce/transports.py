"""Over what NCCL moves data between ranks, by its own account."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

# "Channel 00/0 : 0[0] -> 8[0] [send] via NET/IB/0/GDRDMA"
VIA = re.compile(r"Channel .* via (\S+)")
NUMBER = re.compile(r"/\d+")


def listen(folder: Path) -> None:
    """Has NCCL tell, from its start on, a file per rank."""
    folder.mkdir(exist_ok=True)
    os.environ["NCCL_DEBUG"] = "INFO"
    os.environ["NCCL_DEBUG_FILE"] = f"{folder}/%h.%p"


def told(folder: Path) -> dict[str, int]:
    """Channels by transport, such as P2P/CUMEM, SHM/direct/direct, NET/Socket, NET/IB/GDRDMA."""
    texts = (path.read_text(errors="replace") for path in sorted(folder.glob("*")))
    found = (NUMBER.sub("", via) for text in texts for via in VIA.findall(text))
    return dict(Counter(found))

"""How many more ranks this node has memory for."""

from __future__ import annotations

import re
from pathlib import Path

# A node that is a container sees the memory of the whole machine, and may use its cgroup's.
LIMITS = {
    "memory.max": ("memory.stat", "anon"),  # cgroup v2
    "memory/memory.limit_in_bytes": ("memory/memory.stat", "total_rss"),  # v1
}
SPARE = 0.2  # of what is free: left to all else that runs here


def ranks(wanted: int, root: Path = Path("/")) -> int:
    """As many as are wanted, or as find room when each takes what this one does (bytes).

    Ranks beyond that would read their programs from disk again and again, for ever.
    """
    own = 1024 * _number(root / "proc/self/status", "RssAnon:")
    return min(wanted, max(0, int((1 - SPARE) * _free(root) // own)))


def _free(root: Path) -> int:
    free = [1024 * _number(root / "proc/meminfo", "MemAvailable:")]
    groups = root / "sys/fs/cgroup"
    for limit, (used, field) in LIMITS.items():
        if (groups / limit).exists() and (
            bound := (groups / limit).read_text().strip()
        ).isdecimal():
            free.append(int(bound) - _number(groups / used, field))
    return min(free)


def _number(file: Path, field: str) -> int:
    found = re.search(rf"^{re.escape(field)}\s+(\d+)", file.read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{file} has no {field}")
    return int(found[1])

"""Computes for how many more ranks this node has memory."""

from __future__ import annotations

import re
from pathlib import Path

# A container sees the memory of the whole machine, but may use only that of its cgroup.
LIMITS = {
    "memory.max": "anon",  # cgroup v2
    "memory.limit_in_bytes": "total_rss",  # v1
}
SPARE = 0.2  # of the free memory: left to other programs


def ranks(wanted: int, root: Path = Path("/")) -> int:
    """The wanted number of ranks, or as many as have room if each takes as much as this one.

    Further ranks would make the system read programs from disk again and again, without an end.
    """
    own = 1024 * _number(root / "proc/self/status", "RssAnon:")
    return min(wanted, max(0, int((1 - SPARE) * _free(root) // own)))


def _free(root: Path) -> int:
    free = [1024 * _number(root / "proc/meminfo", "MemAvailable:")]
    for group in _groups(root):
        for limit, field in LIMITS.items():
            bound = (group / limit).read_text().strip() if (group / limit).exists() else ""
            if bound.isdecimal():  # not `max`
                free.append(int(bound) - _number(group / "memory.stat", field))
    return min(free)


def _groups(root: Path) -> list[Path]:
    """The folders of this process' cgroup and of those above it, for v2 and for v1.

    A container sees the whole tree, or only its own part as the root, so any may be absent.
    """
    said, found = (root / "proc/self/cgroup").read_text(), []
    for controllers, path in (line.split(":")[1:3] for line in said.splitlines()):
        if controllers in ("", "memory"):
            top, steps = root / "sys/fs/cgroup" / controllers, Path(path).parts[1:]
            found += [top.joinpath(*steps[:count]) for count in range(len(steps) + 1)]
    return found


def _number(file: Path, field: str) -> int:
    found = re.search(rf"^{re.escape(field)}\s+(\d+)", file.read_text(), re.MULTILINE)
    if found is None:
        raise ValueError(f"{file} has no {field}")
    return int(found[1])

"""What is in a folder of checkpoints on the cluster: files to go on from, and what is beside them.

Jobs name their files as they like. One that is hidden or named as a draft is still being written;
a checksum, and what is damaged and was set aside, is nothing to go on from either.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from gpubed.core.errors import GpubedError, UsageError
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.ssh import SSH
from gpubed.spec.plan import ClusterPlan

FINISHED = (
    "! -name '.*' ! -name draft ! -name '*.part' ! -name '*.tmp' "
    "! -name '*.sha256' ! -name '*.damaged*'"
)
"""By which `find` tells the files that a run could go on from."""
_SUM = ".sha256"
# Files come and go while it looks, and the folder may be a link.
_LIST = (
    "[ ! -e %s ] || find -H %s -ignore_readdir_race -type f "
    f"\\( {FINISHED} -printf 'finished ' -o -printf 'beside ' \\) -printf '%%s %%T@ %%P\\0'"
)
_ENTRY = re.compile(r"(finished|beside) (\S+ \S+) (.+)", re.DOTALL)
_LOOK_S = 30.0


@dataclass(frozen=True)
class Files:
    """What a look found: of each file its name, and its size and time as one text.

    Attributes:
        finished: What a run could go on from.
        beside: Drafts, checksums, and what is damaged.
    """

    finished: frozenset[tuple[str, str]] = frozenset()
    beside: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def of(cls, listed: str) -> Self:
        """Read what the head listed."""
        entries = [entry for one in listed.split("\0") if (entry := _ENTRY.fullmatch(one))]
        finished = frozenset((e[3], e[2]) for e in entries if e[1] == "finished")
        return cls(finished, frozenset((e[3], e[2]) for e in entries) - finished)

    def new(self, start: Files) -> frozenset[tuple[str, str]]:
        """Return what could be gone on from, and was not there at the start or was another file."""
        return self.finished - start.finished

    def have_more(self, start: Files, before: Files) -> bool:
        """Say whether there is more than at the start, and whole.

        It is whole where nothing of it has changed since the look before, or where a checksum
        came with it, which nobody can write earlier.
        """
        new = self.new(start)
        sums = {name for name, _ in self.beside - start.beside}
        summed = any(f"{name}{_SUM}" in sums for name, _ in new)
        return bool(new) and (summed or new <= before.finished)


def folder(plan: ClusterPlan, name: str) -> str:
    """Return where a folder of checkpoints is on the cluster."""
    return f"{plan.spec.storage.shared.path}/checkpoints/{name}"


def look(cluster: Cluster, name: str) -> Files | None:
    """Look into a folder of checkpoints, on the head; None where nobody can tell."""
    where = folder(cluster.plan, name)
    try:
        with SSH(cluster.allocation.head, cluster.paths) as head:
            return Files.of(head.run(_LIST, where, where, timeout=_LOOK_S).stdout)
    except GpubedError:
        return None


def has_some(cluster: Cluster, name: str) -> bool:
    """Say whether there is something to go on from; not where nobody can tell."""
    found = look(cluster, name)
    return found is not None and bool(found.finished)


def require_some(cluster: Cluster, names: Iterable[str], hint: str) -> None:
    """Refuse to go on where there is nothing to go on from.

    Raises:
        UsageError: No folder has a file of a checkpoint.
    """
    found = {folder(cluster.plan, name): look(cluster, name) for name in names}
    if found and all(files is not None and not files.finished for files in found.values()):
        raise UsageError(f"there is no checkpoint to go on from in {', '.join(found)}", hint)

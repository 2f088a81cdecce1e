"""Names of checkpoint folders, and the files in them.

Jobs choose the names of their checkpoints. Hidden files, drafts, checksums and damaged files are no
checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Self
from urllib.parse import quote, unquote

from gpubed.core.errors import GpubedError, UsageError
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import SSH
from gpubed.spec.plan import ClusterPlan

FINISHED = (
    "! -name '.*' ! -name draft ! -name '*.part' ! -name '*.tmp' "
    "! -name '*.sha256' ! -name '*.damaged*'"
)
"""Arguments of `find` that select finished checkpoints."""
_SUM = ".sha256"
# Files may vanish while `find` runs, and the folder may be a link.
_LIST = (
    "[ ! -e %s ] || find -H %s -ignore_readdir_race -type f "
    f"\\( {FINISHED} -printf 'finished ' -o -printf 'beside ' \\) -printf '%%s %%T@ %%P\\0'"
)
_ENTRY = re.compile(r"(finished|beside) (\S+ \S+) (.+)", re.DOTALL)
_LOOK_S = 30.0


@dataclass(frozen=True)
class Files:
    """The files of a checkpoint folder, each as its name and a text with size and time.

    Attributes:
        finished: Checkpoints from which a run can resume.
        beside: Drafts, checksums and damaged files.
    """

    finished: frozenset[tuple[str, str]] = frozenset()
    beside: frozenset[tuple[str, str]] = frozenset()

    @classmethod
    def of(cls, listed: str) -> Self:
        """Parse the output of the head's `find`."""
        entries = [entry for text in listed.split("\0") if (entry := _ENTRY.fullmatch(text))]
        finished = frozenset((e[3], e[2]) for e in entries if e[1] == "finished")
        return cls(finished, frozenset((e[3], e[2]) for e in entries) - finished)

    def new(self, start: Files) -> frozenset[tuple[str, str]]:
        """Return the checkpoints that are new or have changed since the start."""
        return self.finished - start.finished

    def have_more(self, start: Files, before: Files) -> bool:
        """Return whether there are new checkpoints since the start, and they are complete.

        They are complete if they have not changed since the list `before`, or if one of them has a
        new checksum, which a job writes after the checkpoint.
        """
        new = self.new(start)
        sums = {name for name, _ in self.beside - start.beside}
        summed = any(f"{name}{_SUM}" in sums for name, _ in new)
        return bool(new) and (summed or new <= before.finished)


def folder(plan: ClusterPlan, name: str) -> str:
    """Return the path of a checkpoint folder on the cluster."""
    return f"{plan.spec.storage.shared.path}/checkpoints/{name}"


def look(cluster: Cluster, name: str) -> Files | None:
    """List a checkpoint folder on the head; None if the head does not answer."""
    path = folder(cluster.plan, name)
    try:
        with SSH(cluster.allocation.head, cluster.paths) as head:
            return Files.of(head.run(_LIST, path, path, timeout=_LOOK_S).stdout)
    except GpubedError:
        return None


def has_some(cluster: Cluster, name: str) -> bool:
    """Return whether a folder has a checkpoint; False if the head does not answer."""
    found = look(cluster, name)
    return found is not None and bool(found.finished)


def require_some(cluster: Cluster, names: Iterable[str], hint: str) -> None:
    """Refuse to resume without a checkpoint.

    Raises:
        UsageError: All folders could be listed, and none has a checkpoint.
    """
    found = {folder(cluster.plan, name): look(cluster, name) for name in names}
    if found and all(files is not None and not files.finished for files in found.values()):
        raise UsageError(f"there is no checkpoint to resume from in {', '.join(found)}", hint)


_LONGEST = 255  # bytes of a file's name, here and on nodes


def folder_fault(name: str) -> str:
    """Return why a text is no name of a folder below `checkpoints/`; empty if it is one."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        return f"{name!r} leads out of the folder of checkpoints"
    if not path.parts:
        return f"{name!r} is the folder of all checkpoints, not a folder in it"
    if (length := len(lock_name(name))) > _LONGEST:
        return f"its name is too long: {length} bytes in a URL, {_LONGEST} are allowed"
    return ""


def folder_name(name: str) -> str:
    """Return the normal form of a name: `c1` for `./c1`, `c1/` and `c1/.`."""
    return str(PurePosixPath(name))


def lock_name(name: str) -> str:
    """Return the name of the lock that the folder's writer holds."""
    return quote(folder_name(name), safe="")


def folder_of_lock(name: str) -> str:
    """Return the folder whose lock has that name."""
    return unquote(name)

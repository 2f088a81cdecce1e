"""Reports full file systems of a node, which otherwise show as unrelated failures."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from gpubed.core import reading
from gpubed.nodes import answers
from gpubed.nodes.ssh import SSH

# Folders that software, logs, jobs and users write to; several may share a file system.
_PLACES = ("/", "/tmp", "/var", "/var/tmp", "/var/log", "/var/lib/docker", "/home")  # noqa: S108
# `df` hangs on a dead NFS server.
_COMMAND = (
    "timeout --signal=KILL 5 df --block-size=1M --output=target,pcent,avail,ipcent,iavail"
    " -- %s 2>/dev/null"
)
# `df` rounds up: a big disk at 100 % may still have plenty of space.
_NEED_MIB, _NEED_FILES = 1024, 1000
_LONGEST = 100  # characters of a path that are shown


@dataclass(frozen=True)
class FileSystem:
    """A row of `df`. A file system that does not count inodes has 0 for files."""

    path: str
    used: int  # percent
    free_mib: int
    used_files: int  # percent
    free_files: int

    @property
    def full(self) -> str:
        """Why the file system counts as full; empty if it does not."""
        if self.used >= 100 and self.free_mib < _NEED_MIB:
            return f"{self.path} is {self.used} % full ({self.free_mib} MiB are free)"
        if self.used_files >= 100 and self.free_files < _NEED_FILES:
            return f"{self.path} has no room for another file ({self.used_files} % of its inodes)"
        return ""


def look(ssh: SSH, *others: str) -> list[FileSystem]:
    """Return the file systems of a node's usual folders and `others`, each once."""
    places = (*_PLACES, *others)
    rows = ssh.run(_COMMAND % shlex.join(places), check=False).stdout.splitlines()
    # `df` prints at most one row per folder.
    return list(dict.fromkeys(filter(None, map(_parsed, rows[1 : 1 + len(places)]))))


def full(systems: Iterable[FileSystem]) -> list[str]:
    """Return a description of each full file system."""
    return [system.full for system in systems if system.full]


def _parsed(line: str) -> FileSystem | None:
    path, *words = line.rsplit(None, 4) or [""]
    figures = [answers.whole(word.removesuffix("%")) for word in words]
    if len(figures) < 4 or figures[0] is None:  # `df` prints `-` for file systems without a size
        return None
    used, free, used_files, free_files = (figure or 0 for figure in figures)
    return FileSystem(reading.short(path, _LONGEST), used, free, used_files, free_files)

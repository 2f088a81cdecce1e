"""The newest whole checkpoint of each folder of checkpoints, brought here with its SHA-256.

A checkpoint is a file of such a folder, or a folder in it. One with a `.sha256` beside it is whole
if it has that sum as it came; any other if it did not change meanwhile.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gpubed.cluster import collected, listed
from gpubed.cluster.collected import Memory
from gpubed.cluster.listed import NOT_UTF_8, Thing
from gpubed.core import copying, files
from gpubed.core.copying import NotAName
from gpubed.core.errors import GpubedError
from gpubed.jobs import checkpoint_folder
from gpubed.jobs.runs import checkpoints, record
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.ssh import SSH, Unreachable

_SUM = ".sha256"
# What is being written, says something about another file, or was set aside.
_NO_CHECKPOINT = re.compile(r"\..*|draft.*|.*\.(part|tmp|sha256)|.*\.damaged[0-9]*")
_SUMS = "head -c 64 %s && sha256sum < %s"
_SUM_S = 1800.0
_DIGEST = re.compile(r"[0-9a-f]{64}")
_TRIED = 5  # checkpoints of one folder: of those that are damaged, each is read once
_NAMED = 20  # sentences; whoever may write there can make any number of files

Known = Collection[PurePosixPath]
"""Folders of checkpoints that runs name: another may have them within folders."""


@dataclass(frozen=True)
class _Checkpoint:
    """One as the head lists it; `things` are its files, or the one that it is."""

    path: PurePosixPath
    things: tuple[Thing, ...]
    has_sum: bool

    @property
    def size(self) -> int:
        return sum(thing.size for thing in self.things)

    @property
    def changed(self) -> tuple[float, str]:
        return max(float(thing.changed) for thing in self.things), self.path.name

    @property
    def looks(self) -> str:
        return listed.looks(self.things)


def collect(head: SSH, cluster: Cluster) -> list[str]:
    """Copy the newest whole checkpoint of each folder, where it is not here yet.

    One that came from the same storage before goes as soon as a newer one of its folder is here.

    Returns:
        What was done and what was left out, in words; nothing where there was nothing to do.

    Raises:
        NotAName: The head lists a name that leads out of the folder.
        GpubedError: Checkpoints could not be copied; the others have been.
    """
    there = f"{cluster.plan.spec.storage.shared.path}/checkpoints"
    runs = record.every(cluster.paths)[0].values()
    known = {PurePosixPath(name) for run in runs for name in checkpoints.of(run)}
    found, told = _folders(listed.below(head, there), known)
    came, failed = 0, dict[str, str]()
    with collected.remembered(cluster) as memory:
        place = cluster.paths.checkpoints / memory.place
        saving = _Saving(head, there, known, place, memory)
        # Whose was written last is a training that goes on: it comes first.
        for folder in sorted(found, key=lambda name: found[name][0].changed, reverse=True):
            try:
                is_new, said = saving.newest(folder, found[folder])
            except (NotAName, Unreachable):
                raise
            except (GpubedError, OSError) as error:
                failed[str(folder)] = getattr(error, "message", str(error))
                continue
            came += is_new
            told += said
    if failed:
        each = "; ".join([f"{name}: {why}" for name, why in failed.items()][:_NAMED])
        raise GpubedError(
            f"of {len(failed)} of {len(found)} folder(s) in {there} the newest checkpoint is not "
            f"in {place}: {each}",
            "see to what is named; nothing is collected with lease.before_end.collect: false",
        )
    more = [f"{len(told) - _NAMED} more are not named"] if len(told) > _NAMED else []
    done = [f"collected {came} checkpoint(s) into {place}"] if came else []
    return [*done, *told[:_NAMED], *more]


def _folders(
    things: Iterable[Thing], known: Known
) -> tuple[dict[PurePosixPath, list[_Checkpoint]], list[str]]:
    """Return what is in each folder, newest first, and in sentences what is left out.

    Folders are those that runs name; of what no run names, those right in `checkpoints`.
    """
    grouped = defaultdict[PurePosixPath, dict[PurePosixPath, list[Thing]]](dict)
    odd = set[str]()
    for thing in things:
        if thing.kind != "f":
            continue
        above = [*thing.path.parents][:-1]  # the nearest first
        if not above:
            odd.add(f"checkpoints/{_shown(thing.path)} is left out: it is in no folder")
            continue
        folder = next((one for one in above if one in known), above[-1])
        path = folder / thing.path.relative_to(folder).parts[0]
        if why := _unfit(folder, path):
            odd.add(f"checkpoints/{_shown(path)} is left out: {why}")
            continue
        grouped[folder].setdefault(path, []).append(thing)
    found = {folder: _checkpoints(named) for folder, named in grouped.items()}
    return {folder: some for folder, some in found.items() if some}, sorted(odd)


def _checkpoints(named: dict[PurePosixPath, list[Thing]]) -> list[_Checkpoint]:
    found = [
        _Checkpoint(path, tuple(things), things[0].path == path and _beside(path) in named)
        for path, things in named.items()
        if not _NO_CHECKPOINT.fullmatch(path.name)
    ]
    return sorted(found, key=lambda one: one.changed, reverse=True)


def _beside(path: PurePosixPath) -> PurePosixPath:
    return path.with_name(f"{path.name}{_SUM}")


def _unfit(folder: PurePosixPath, path: PurePosixPath) -> str:
    """Say why a checkpoint cannot be here by its name; empty where it can."""
    if NOT_UTF_8 in str(path):
        return "its name is not UTF-8"
    if not str(path).isprintable():
        return "its name cannot be shown"
    return checkpoint_folder.fault(str(folder))


def _shown(path: PurePosixPath) -> str:
    """Return a name on one line."""
    return str(path) if str(path).isprintable() else repr(str(path))


@dataclass(frozen=True)
class _Saving:
    """Copies of one storage's checkpoints.

    Attributes:
        there: The folder of all checkpoints on the head.
        known: Folders that runs name.
        place: Where they come, a folder for each.
        memory: What came before.
    """

    head: SSH
    there: str
    known: Known
    place: Path
    memory: Memory

    def newest(self, folder: PurePosixPath, found: list[_Checkpoint]) -> tuple[bool, list[str]]:
        """Copy the newest whole one of a folder, if it is not here.

        Returns:
            Whether it came just now, and in sentences which newer ones are damaged.
        """
        into, key = self.place / checkpoint_folder.lock_name(str(folder)), f"checkpoints/{folder}"
        told = list[str]()
        for one in found[:_TRIED]:
            is_here = (into / one.path.name).exists()
            if is_here and self.memory.looked.get(key) == one.looks:
                break
            wanted = self._sum_beside(one) if one.has_sum else ""
            if wanted is None:
                told.append(f"checkpoints/{one.path} is damaged: its SHA-256 is another")
                if is_here:  # from when it was whole
                    break
                continue
            self._bring(folder, one, wanted, into)
            self.memory.looked[key] = one.looks
            return True, told
        return False, told

    def _sum_beside(self, one: _Checkpoint) -> str | None:
        """Return the SHA-256 beside a checkpoint; None where, by the head's word, it has another.

        One that is damaged need not come.
        """
        path = f"{self.there}/{one.path}"
        said = self.head.run(_SUMS, f"{path}{_SUM}", path, timeout=_SUM_S).stdout
        wanted, really = said[:64], said[64:128]
        return wanted if wanted == really and _DIGEST.fullmatch(wanted) else None

    def _bring(self, folder: PurePosixPath, one: _Checkpoint, wanted: str, into: Path) -> None:
        """Copy a checkpoint, with its sum, and remove the one before.

        Args:
            wanted: The SHA-256 that it must have; empty where nothing says.

        Raises:
            GpubedError: There is no room for it, or it did not come whole.
        """
        into.mkdir(parents=True, exist_ok=True)
        if why := copying.too_large(one.size, into):
            raise GpubedError(f"{one.path.name}: {why}")
        with tempfile.TemporaryDirectory(prefix=".gpubed-", dir=into) as draft:
            came = Path(draft) / one.path.name
            self.head.get(f"{self.there}/{one.path}", came)
            for thing in one.things:
                file = came / thing.path.relative_to(one.path)
                if not file.is_file() or file.stat().st_size != thing.size:
                    raise GpubedError(f"{_shown(thing.path)} did not come whole")
            parts = [came] if came.is_file() else (p for p in came.rglob("*") if p.is_file())
            sums = record.sums(Path(draft), sorted(parts))
            if wanted and sums.removeprefix("\\")[:64] != wanted:
                raise GpubedError(f"{one.path.name} came with another SHA-256 than {wanted}")
            if not wanted and not self._is_unchanged(folder, one):
                raise GpubedError(f"{one.path.name} changed while it was copied")
            _replace(came, into, sums)

    def _is_unchanged(self, folder: PurePosixPath, one: _Checkpoint) -> bool:
        now, _ = _folders(listed.below(self.head, self.there), self.known)
        return any(other.looks == one.looks for other in now.get(folder, ()))


def _replace(came: Path, into: Path, sums: str) -> None:
    """Put a checkpoint and its sum in the place of whatever a folder has."""
    _remove(into / came.name)
    came.replace(into / came.name)
    files.write(into / f"{came.name}{_SUM}", sums.encode(), durable=True)
    for other in into.iterdir():
        if other not in (into / came.name, into / f"{came.name}{_SUM}", came.parent):
            _remove(other)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

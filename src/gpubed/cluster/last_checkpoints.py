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
from dataclasses import dataclass, field, replace
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
_NO_CHECKPOINT = re.compile(r"\..*|draft.*|.*\.(part|tmp|sha256)|.*\.damaged[0-9]*", re.DOTALL)
_SUMS = "sha256sum < %s && head -c 4096 %s"
_SUM_S = 1800.0
# Wherever it stands: `sha256sum --tag` writes it last, behind the name.
_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_TRIED = 5  # checkpoints of one folder: of those that are damaged, each is read once
_NAMED = 20  # sentences; whoever may write there can make any number of files

Known = Collection[PurePosixPath]
"""Folders of checkpoints that runs name: another may have them within folders."""


@dataclass(frozen=True)
class _Checkpoint:
    """One as the head lists it.

    Attributes:
        things: Its files, or the one that it is.
        unfit: Why it cannot be here, by its name; empty where it can.
    """

    path: PurePosixPath
    things: tuple[Thing, ...]
    has_sum: bool
    unfit: str

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

    One that came from the same storage before goes as soon as a newer one of its folder is here,
    and all of it.

    Returns:
        What was done and what was left out, in words; nothing where there was nothing to do.

    Raises:
        NotAName: The head lists a name that leads out of the folder.
        GpubedError: Something is not here, or not all of it; what could be copied has been.
    """
    there = f"{cluster.plan.spec.storage.shared.path}/checkpoints"
    runs = record.every(cluster.paths)[0].values()
    known = {PurePosixPath(name) for run in runs for name in checkpoints.of(run)}
    things, unlisted = _listed(head, there, known)
    found, lost = _folders(things, known)
    lost += unlisted
    came, told = 0, list[str]()
    with collected.remembered(cluster) as memory:
        place = cluster.paths.checkpoints / memory.place
        saving = _Saving(head, there, known, place, memory)
        # Whose was written last is a training that goes on: it comes first.
        for folder in sorted(found, key=lambda name: found[name][0].changed, reverse=True):
            saved = saving.newest(folder, found[folder])
            came += saved.is_new
            told += saved.told
            lost += saved.lost
    if lost:
        raise GpubedError(
            f"{len(lost)} thing(s) in {there} are not in {place}: {'; '.join(_named(lost))}",
            "see to what is named; nothing is collected with lease.before_end.collect: false",
        )
    done = [f"collected {came} checkpoint(s) into {place}"] if came else []
    return [*done, *_named(told)]


def _named(sentences: list[str]) -> list[str]:
    """Return the first of them, and how many more there are."""
    more = len(sentences) - _NAMED
    return [*sentences[:_NAMED], f"{more} more are not named"] if more > 0 else sentences


def _folders(
    things: Iterable[Thing], known: Known
) -> tuple[dict[PurePosixPath, list[_Checkpoint]], list[str]]:
    """Return what is in each folder, newest first, and in sentences what is in none.

    Folders are those that runs name; of what no run names, those right in `checkpoints`.
    """
    grouped = defaultdict[PurePosixPath, dict[PurePosixPath, list[Thing]]](dict)
    odd = set[str]()
    for thing in things:
        if thing.kind != "f":
            continue
        above = [*thing.path.parents][:-1]  # the nearest first
        if not above:
            if not _NO_CHECKPOINT.fullmatch(thing.path.name):
                odd.add(f"{_shown(thing.path)}: it is in no folder: move it into one")
            continue
        folder = next((one for one in above if one in known), above[-1])
        path = folder / thing.path.relative_to(folder).parts[0]
        grouped[folder].setdefault(path, []).append(thing)
    found = {folder: _checkpoints(folder, named) for folder, named in grouped.items()}
    return {folder: some for folder, some in found.items() if some}, sorted(odd)


def _listed(head: SSH, there: str, known: Known) -> tuple[list[Thing], list[str]]:
    """Return all that is there, and in sentences what could not be listed.

    A folder of a run, or one that it is in, may be a link, which its checkpoints were written
    through: it is followed.
    """
    things, lost = listed.below(head, there), list[str]()
    ways = {way for name in known for way in (name, *name.parents)}
    for link in [one.path for one in things if one.kind == "l" and one.path in ways]:
        try:
            inside = listed.below(head, f"{there}/{link}")
        except (NotAName, Unreachable):
            raise
        except GpubedError as error:
            lost.append(f"{_shown(link)}: {error.message}")
            continue
        things += [replace(one, path=link / one.path) for one in inside]
    return things, lost


def _checkpoints(
    folder: PurePosixPath, named: dict[PurePosixPath, list[Thing]]
) -> list[_Checkpoint]:
    found = [
        _Checkpoint(
            path,
            tuple(things),
            has_sum=things[0].path == path and _beside(path) in named,
            unfit=_unfit(folder, things),
        )
        for path, things in named.items()
        if not _NO_CHECKPOINT.fullmatch(path.name)
    ]
    return sorted(found, key=lambda one: one.changed, reverse=True)


def _beside(path: PurePosixPath) -> PurePosixPath:
    return path.with_name(f"{path.name}{_SUM}")


def _unfit(folder: PurePosixPath, things: Iterable[Thing]) -> str:
    """Say why a checkpoint cannot be here by its name; empty where it can."""
    if any(NOT_UTF_8 in str(thing.path) for thing in things):
        return "a name is not UTF-8: rename it there"
    return checkpoint_folder.fault(str(folder))


def _shown(path: PurePosixPath) -> str:
    """Return where something is, on one line."""
    return f"checkpoints/{path if str(path).isprintable() else repr(str(path))}"


@dataclass
class _Saved:
    """What became of a folder.

    Attributes:
        is_new: Whether a checkpoint came just now.
        told: What an owner should know, in sentences.
        lost: What is not here and would go with the storage, in sentences.
    """

    is_new: bool = False
    told: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)


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

    def newest(self, folder: PurePosixPath, found: list[_Checkpoint]) -> _Saved:
        """Copy the newest whole one of a folder, if it is not here.

        Raises:
            NotAName: The head lists a name that leads out of the folder.
            Unreachable: It does not answer any more.
        """
        saved = _Saved()
        for one in found[:_TRIED]:
            try:
                is_here = self._take(folder, one, saved)
            except (NotAName, Unreachable):
                raise
            except (GpubedError, OSError) as error:
                # The one before is better than none, and this one may never come.
                why = getattr(error, "message", str(error))
                saved.lost.append(f"{_shown(one.path)}: {why}")
                continue
            if is_here:
                break
        else:  # a checksum may be what is wrong, and all of them whole
            return _Saved(lost=[*saved.lost, *saved.told])
        saved.lost += self.memory.lacks.get(_key(folder), ())
        return saved

    def _take(self, folder: PurePosixPath, one: _Checkpoint, saved: _Saved) -> bool:
        """Copy a checkpoint if it is whole and not here; say whether it is here."""
        if one.unfit:
            raise GpubedError(one.unfit)
        into, key = self.place / checkpoint_folder.lock_name(str(folder)), _key(folder)
        is_here = (into / one.path.name).exists()
        if is_here and self.memory.looked.get(key) == one.looks:
            return True
        wanted = self._sum_beside(one) if one.has_sum else ""
        if wanted is None:
            saved.told.append(f"{_shown(one.path)} is damaged: its SHA-256 is another")
            return is_here  # from when it was whole
        said = [f"{_shown(one.path)}: {why}" for why in self._bring(folder, one, wanted, into)]
        lacks = [why for why in said if why.endswith(copying.ELSEWHERE)]
        saved.told += [why for why in said if why not in lacks]
        saved.is_new = True
        is_older = one.changed[0] < self.memory.changed.get(key, one.changed[0])
        if not (lacks or is_older):
            _leave_alone(into, one.path.name)
        self.memory.looked[key], self.memory.lacks[key] = one.looks, lacks
        self.memory.changed[key] = one.changed[0]
        return True

    def _sum_beside(self, one: _Checkpoint) -> str | None:
        """Return the SHA-256 beside a checkpoint; None where, by the head's word, it has another.

        One that is damaged need not come.
        """
        path = f"{self.there}/{one.path}"
        said = self.head.run(_SUMS, path, f"{path}{_SUM}", timeout=_SUM_S).stdout
        really, beside = said[:64], said[64:].lower()
        return really if really in _DIGEST.findall(beside) else None

    def _bring(self, folder: PurePosixPath, one: _Checkpoint, wanted: str, into: Path) -> list[str]:
        """Copy a checkpoint, with its sum.

        Args:
            wanted: The SHA-256 that it must have; empty where nothing says.

        Returns:
            Sentences that say what of it was left out, none of them a file of its own.

        Raises:
            GpubedError: There is no room for it, or it did not come whole.
        """
        into.mkdir(parents=True, exist_ok=True)
        if why := copying.too_large(one.size, into):
            raise GpubedError(why)
        with tempfile.TemporaryDirectory(prefix=".gpubed-", dir=into) as draft:
            came = Path(draft) / one.path.name
            left_out = self.head.get(f"{self.there}/{one.path}", came)
            for thing in one.things:
                file = came / thing.path.relative_to(one.path)
                if not file.is_file() or file.stat().st_size != thing.size:
                    why = "; ".join([f"{_shown(thing.path)} did not come whole", *left_out])
                    raise GpubedError(why)
            parts = [came] if came.is_file() else (p for p in came.rglob("*") if p.is_file())
            sums = record.sums(Path(draft), sorted(parts))
            if wanted and sums.removeprefix("\\")[:64] != wanted:
                raise GpubedError(f"it came with another SHA-256 than {wanted}")
            if not wanted and not self._is_unchanged(folder, one):
                raise GpubedError("it changed while it was copied")
            _replace(came, into, sums)
        return left_out

    def _is_unchanged(self, folder: PurePosixPath, one: _Checkpoint) -> bool:
        things, _ = _listed(self.head, self.there, self.known)
        now, _ = _folders(things, self.known)
        return any(other.looks == one.looks for other in now.get(folder, ()))


def _key(folder: PurePosixPath) -> str:
    """Return what is remembered of a folder by."""
    return f"checkpoints/{folder}"


def _replace(came: Path, into: Path, sums: str) -> None:
    """Put a checkpoint and its sum in the place of one of its name."""
    _remove(into / came.name)
    came.replace(into / came.name)
    files.write(into / f"{came.name}{_SUM}", sums.encode(), durable=True)


def _leave_alone(into: Path, name: str) -> None:
    """Remove all that a folder has but one checkpoint and its sum."""
    for other in into.iterdir():
        if other.name not in (name, f"{name}{_SUM}"):
            _remove(other)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

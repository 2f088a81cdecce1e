"""Copies the newest intact checkpoint of each folder of checkpoints, with its SHA-256.

A checkpoint is a file or folder in such a folder. One with a `.sha256` beside it is intact if its
copy has that sum; any other if it did not change while it was copied. `collected.json` remembers
what was collected. Nodes report sizes and times; a false report only keeps that node's own data
from being copied.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from gpubed.cluster import lease as leases
from gpubed.core import copying, files, reading
from gpubed.core.copying import NotAName, as_name
from gpubed.core.errors import GpubedError
from gpubed.core.reading import Unreadable
from gpubed.jobs.checkpoint_files import folder_fault, lock_name
from gpubed.jobs.runs import checkpoints, record
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import SSH, Unreachable

NOT_UTF_8 = "\N{REPLACEMENT CHARACTER}"
"""Stands in a command's output for what is none."""
_SUM = ".sha256"
# Drafts, checksums, and damaged checkpoints that were set aside.
_NO_CHECKPOINT = re.compile(r"\..*|draft.*|.*\.(part|tmp|sha256)|.*\.damaged[0-9]*", re.DOTALL)
_SUMS = "sha256sum < %s && head -c 4096 %s"
_SUM_S = 1800.0
# The digest may be anywhere in the file: `sha256sum --tag` writes it last.
_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_TRIED = 5  # checkpoints per folder
_LIST_S = 120.0
_NAMED = 20
# Prints the type (`d` for a folder), size in bytes, modification time and path of each entry.
_LIST = "find %s/ -mindepth 1 -printf '%%y\\t%%s\\t%%T@\\t%%P\\0' 2> /dev/null || true"
_ONE = re.compile(r"(.)\t([0-9]{1,18})\t(-?[0-9]{1,12}(?:\.[0-9]{1,12})?)\t(.+)", re.DOTALL)


class Memory(BaseModel):
    """What was collected from a storage."""

    model_config = ConfigDict(extra="ignore")  # a newer version may keep more

    version: Literal[1] = 1
    of: str  # the id of the node that has the storage
    place: Annotated[str, Field(pattern=r"^[0-9]{8}-[0-9]{6}$")]  # subfolder for its checkpoints
    looked: dict[str, str] = {}  # digest of each thing when it was copied, by its path
    changed: dict[str, float] = {}  # when each checkpoint changed, by the storage's clock


@contextmanager
def remembered(cluster: Cluster) -> Iterator[Memory]:
    """Yield the memory of the present storage, and write it back even if the work fails."""
    allocation = cluster.allocation
    name = cluster.plan.spec.storage.shared.server or allocation.head.name
    nodes = (node.id for node in allocation.nodes if node.name == name)
    # A new folder, so that copies from another storage stay as they are.
    place = leases.now().strftime("%Y%m%d-%H%M%S")
    memory = Memory(of=next(nodes, allocation.head.id), place=place)
    with suppress(Unreadable):
        found = reading.file(cluster.paths.collected).json(Memory)
        memory = found if found.of == memory.of else memory
    try:
        yield memory
    finally:
        with suppress(OSError):  # a full disk; something is then copied twice
            files.write(cluster.paths.collected, memory.model_dump_json(indent=1).encode())


@dataclass(frozen=True)
class Thing:
    """An entry below a folder, as `find` lists it: a file (`f`), folder (`d`) or other kind."""

    kind: str
    size: int
    changed: str
    path: PurePosixPath


def below(head: SSH, folder: str) -> list[Thing]:
    """Return all entries below a folder; none if the folder does not exist.

    Raises `NotAName` if a name leads out of the folder.
    """
    said = head.run(_LIST, folder, timeout=_LIST_S).stdout
    # Too long an output is cut off.
    if said and not said.endswith("\0"):
        raise GpubedError(
            f"{folder} has too many entries to list", "move those away that are no checkpoints"
        )
    things = []
    for one in filter(None, said.split("\0")):
        if not (found := _ONE.fullmatch(one)):
            raise GpubedError(f"what is in {folder} is listed as {one[:80]!r}", "look at the head")
        kind, size, changed, path = found.groups()
        things.append(
            Thing(kind, int(size), changed, PurePosixPath(*map(as_name, path.split("/"))))
        )
    return things


def looks(things: Iterable[Thing]) -> str:
    """Return a digest of entries, which changes when one of them does."""
    told = sorted(f"{one.path}\t{one.kind}\t{one.size}\t{one.changed}" for one in things)
    return hashlib.sha256("\0".join(told).encode()).hexdigest()


def named(sentences: list[str]) -> list[str]:
    """Return the first sentences; users may write any number of odd things there."""
    more = [f"{len(sentences) - _NAMED} more are not named"] if len(sentences) > _NAMED else []
    return [*sentences[:_NAMED], *more]


Known = Collection[PurePosixPath]
"""Folders of checkpoints that runs name."""


@dataclass(frozen=True)
class _Checkpoint:
    """A checkpoint as the head lists it; `unfit` says why its name cannot be used locally."""

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
        return looks(self.things)


def collect(head: SSH, cluster: Cluster) -> list[str]:
    """Copy the newest intact checkpoint of each folder, unless it is already here.

    An older copy from the same storage is removed once a newer one of its folder is here. Raises
    `NotAName` if the head lists a name that leads out of the folder, `GpubedError` if something
    could not be copied; the rest was. Returns what was done and left out, in words.
    """
    there = f"{cluster.plan.spec.storage.shared.path}/checkpoints"
    runs = record.every(cluster.paths)[0].values()
    known = {PurePosixPath(name) for run in runs for name in checkpoints.of(run)}
    things, unlisted = _listed(head, there, known)
    found, lost = _folders(things, known)
    lost += unlisted
    came, told = 0, list[str]()
    with remembered(cluster) as memory:
        place = cluster.paths.checkpoints / memory.place
        saving = _Saving(head, there, known, place, memory)
        # A training that still runs has written last, and comes first.
        for folder in sorted(found, key=lambda name: found[name][0].changed, reverse=True):
            came += saving.newest(folder, found[folder], told, lost)
    if lost:
        each = "; ".join(named(lost))
        raise GpubedError(
            f"{len(lost)} thing(s) in {there} are not in {place}: {each}",
            "see to what is named; nothing is collected with lease.before_end.collect: false",
        )
    done = [f"collected {came} checkpoint(s) into {place}"] if came else []
    return [*done, *named(told)]


def _folders(
    things: Iterable[Thing], known: Known
) -> tuple[dict[PurePosixPath, list[_Checkpoint]], list[str]]:
    grouped = defaultdict[PurePosixPath, dict[PurePosixPath, list[Thing]]](dict)
    odd = set[str]()
    for thing in things:
        if thing.kind != "f":
            continue
        above = [*thing.path.parents][:-1]  # the nearest first
        if above:
            folder = next((one for one in above if one in known), above[-1])
            path = folder / thing.path.relative_to(folder).parts[0]
            grouped[folder].setdefault(path, []).append(thing)
        elif not _NO_CHECKPOINT.fullmatch(thing.path.name):
            odd.add(f"{_shown(thing.path)}: it is in no folder: move it into one")
    found = {folder: _checkpoints(folder, named) for folder, named in grouped.items()}
    return {folder: some for folder, some in found.items() if some}, sorted(odd)


def _listed(head: SSH, there: str, known: Known) -> tuple[list[Thing], list[str]]:
    things, lost = below(head, there), list[str]()
    ways = {way for name in known for way in (name, *name.parents)}
    for link in [one.path for one in things if one.kind == "l" and one.path in ways]:
        try:
            inside = below(head, f"{there}/{link}")
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
            has_sum=things[0].path == path and path.with_name(f"{path.name}{_SUM}") in named,
            unfit="a name is not UTF-8: rename it there"
            if any(NOT_UTF_8 in str(thing.path) for thing in things)
            else folder_fault(str(folder)),
        )
        for path, things in named.items()
        if not _NO_CHECKPOINT.fullmatch(path.name)
    ]
    return sorted(found, key=lambda one: one.changed, reverse=True)


def _shown(path: PurePosixPath) -> str:
    return f"checkpoints/{path if str(path).isprintable() else repr(str(path))}"


@dataclass(frozen=True)
class _Saving:
    head: SSH
    there: str
    known: Known
    place: Path
    memory: Memory

    def newest(
        self, folder: PurePosixPath, found: list[_Checkpoint], told: list[str], lost: list[str]
    ) -> bool:
        """Copy the newest intact checkpoint of a folder if it is not here; return whether it did.

        `told` receives sentences for the user; `lost` those about data that is not here and goes.
        """
        damaged = list[str]()
        for one in found[:_TRIED]:
            try:
                came = self._take(folder, one, told, damaged)
            except (NotAName, Unreachable):
                raise
            except (GpubedError, OSError) as error:  # an older checkpoint is better than none
                lost.append(f"{_shown(one.path)}: {getattr(error, 'message', str(error))}")
                continue
            if came is not None:
                break
        else:
            lost += damaged  # the checksums may be wrong instead
            return False
        told += damaged
        return came

    def _take(
        self, folder: PurePosixPath, one: _Checkpoint, told: list[str], damaged: list[str]
    ) -> bool | None:
        """Copy a checkpoint unless it is here, and remove older ones; None if it is damaged."""
        if one.unfit:
            raise GpubedError(one.unfit)
        into, key = self.place / lock_name(str(folder)), f"checkpoints/{folder}"
        is_here, memory, changed = (into / one.path.name).exists(), self.memory, one.changed[0]
        if is_here and memory.looked.get(key) == one.looks:
            return False
        wanted = ""
        if one.has_sum:  # a damaged checkpoint need not be copied
            path = f"{self.there}/{one.path}"
            said = self.head.run(_SUMS, path, f"{path}{_SUM}", timeout=_SUM_S).stdout
            wanted = said[:64]
            if wanted not in _DIGEST.findall(said[64:].lower()):
                damaged.append(f"{_shown(one.path)} is damaged: its SHA-256 is another")
                return False if is_here else None  # the copy here was made while it was intact
        left_out = self._bring(folder, one, wanted, into)
        if lacks := [why for why in left_out if why.endswith(copying.NOT_COPIED_TARGETS)]:
            raise GpubedError("; ".join(lacks))
        told += [f"{_shown(one.path)}: {why}" for why in left_out]
        for other in into.iterdir() if changed >= memory.changed.get(key, changed) else ():
            if other.name not in (one.path.name, f"{one.path.name}{_SUM}"):
                _remove(other)
        memory.looked[key], memory.changed[key] = one.looks, changed
        return True

    def _bring(self, folder: PurePosixPath, one: _Checkpoint, wanted: str, into: Path) -> list[str]:
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
            if not wanted:
                now, _ = _folders(_listed(self.head, self.there, self.known)[0], self.known)
                if all(other.looks != one.looks for other in now.get(folder, ())):
                    raise GpubedError("it changed while it was copied")
            _remove(into / came.name)
            came.replace(into / came.name)
            files.write(into / f"{came.name}{_SUM}", sums.encode(), durable=True)
        return left_out


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

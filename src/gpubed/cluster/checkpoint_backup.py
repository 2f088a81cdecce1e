"""Copies the newest intact checkpoint of each folder of checkpoints, with its SHA-256.

A checkpoint is a file or folder in such a folder. A checkpoint with a `.sha256` file beside it is
intact if its copy has that sum; others, if they did not change while they were copied.
`collected.json` lists the copies. Sizes and times are a node's own report; a false one only
prevents copies of that node's data.
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
"""Replaces bytes in a command's output that are not UTF-8."""
_SUM = ".sha256"
# Drafts, checksums, and damaged checkpoints that were set aside.
_NO_CHECKPOINT = re.compile(r"\..*|draft.*|.*\.(part|tmp|sha256)|.*\.damaged[0-9]*", re.DOTALL)
_READ_SUMS = "sha256sum < %s && head -c 4096 %s"
_SUM_S = 1800.0
# The digest may be anywhere in the file: `sha256sum --tag` writes it last.
_DIGEST = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_MOST_TRIED = 5  # checkpoints per folder
_LIST_S = 120.0
_MOST_SENTENCES = 20
# Prints the type (`d` for a folder), size in bytes, modification time and path of each entry.
_LIST = "find %s/ -mindepth 1 -printf '%%y\\t%%s\\t%%T@\\t%%P\\0' 2> /dev/null || true"
_ENTRY = re.compile(r"(.)\t([0-9]{1,18})\t(-?[0-9]{1,12}(?:\.[0-9]{1,12})?)\t(.+)", re.DOTALL)


class Memory(BaseModel):
    """The copies that were made of a storage."""

    model_config = ConfigDict(extra="ignore")  # a newer version may keep more

    version: Literal[1] = 1
    of: str  # the id of the node that has the storage
    place: Annotated[str, Field(pattern=r"^[0-9]{8}-[0-9]{6}$")]  # subfolder for its checkpoints
    looked: dict[str, str] = {}  # `digest` of each run or checkpoint when it was copied, by path
    changed: dict[str, float] = {}  # modification time of each checkpoint, by the storage's clock


@contextmanager
def remembered(cluster: Cluster) -> Iterator[Memory]:
    """Yield the memory of the present storage, and write it back even if the body fails."""
    allocation = cluster.allocation
    name = cluster.plan.spec.storage.shared.server or allocation.head.name
    nodes = (node.id for node in allocation.nodes if node.name == name)
    # Another storage gets a new folder, so that copies of the former one stay.
    place = leases.now().strftime("%Y%m%d-%H%M%S")
    memory = Memory(of=next(nodes, allocation.head.id), place=place)
    with suppress(Unreadable):
        stored = reading.file(cluster.paths.collected).json(Memory)
        memory = stored if stored.of == memory.of else memory
    try:
        yield memory
    finally:
        with suppress(OSError):  # on a full disk; some checkpoints are then copied again
            files.write(cluster.paths.collected, memory.model_dump_json(indent=1).encode())


@dataclass(frozen=True)
class Entry:
    """An entry below a folder, as `find` lists it: a file (`f`), folder (`d`) or other kind."""

    kind: str
    size: int
    changed: str
    path: PurePosixPath


def below(head: SSH, folder: str) -> list[Entry]:
    """Return all entries below a folder; none if the folder does not exist.

    Raises `NotAName` if a name leads out of the folder.
    """
    output = head.run(_LIST, folder, timeout=_LIST_S).stdout
    # A too long output is cut off.
    if output and not output.endswith("\0"):
        why = f"{folder} has too many entries to list"
        raise GpubedError(why, "move files away that are no checkpoints")
    entries = []
    for text in filter(None, output.split("\0")):
        if not (match := _ENTRY.fullmatch(text)):
            why = f"the head lists an entry of {folder} as {text[:80]!r}"
            raise GpubedError(why, "inspect the head")
        kind, size, changed, path = match.groups()
        names = map(as_name, path.split("/"))
        entries.append(Entry(kind, int(size), changed, PurePosixPath(*names)))
    return entries


def digest(entries: Iterable[Entry]) -> str:
    """Return a digest of entries, which changes when one of them does."""
    lines = sorted(f"{each.path}\t{each.kind}\t{each.size}\t{each.changed}" for each in entries)
    return hashlib.sha256("\0".join(lines).encode()).hexdigest()


def shortened(sentences: list[str]) -> list[str]:
    """Return the first sentences and the number of others, because users may cause any number."""
    more = len(sentences) - _MOST_SENTENCES
    return [*sentences[:_MOST_SENTENCES], *([f"{more} more are not named"] if more > 0 else [])]


@dataclass(frozen=True)
class _Checkpoint:
    """A checkpoint as the head lists it; `unfit` says why its name cannot be used locally."""

    path: PurePosixPath
    entries: tuple[Entry, ...]
    has_sum: bool
    unfit: str

    @property
    def size(self) -> int:
        return sum(entry.size for entry in self.entries)

    @property
    def changed(self) -> tuple[float, str]:
        return max(float(entry.changed) for entry in self.entries), self.path.name

    @property
    def digest(self) -> str:
        return digest(self.entries)


def collect(head: SSH, cluster: Cluster) -> list[str]:
    """Copy the newest intact checkpoint of each folder to the controller, if it has no such copy.

    Removes an older copy from the same storage once a newer checkpoint of its folder is copied.
    Raises `NotAName` if the head lists a name that leads out of the folder, `GpubedError` if some
    checkpoints could not be copied; the others were. Returns sentences about what was copied and
    left out.
    """
    remote = f"{cluster.plan.spec.storage.shared.path}/checkpoints"
    runs = record.every(cluster.paths)[0].values()
    run_folders = {PurePosixPath(name) for run in runs for name in checkpoints.of(run)}
    entries, unlisted = _listed(head, remote, run_folders)
    by_folder, lost = _folders(entries, run_folders)
    lost += unlisted
    copied, notes = 0, list[str]()
    with remembered(cluster) as memory:
        place = cluster.paths.checkpoints / memory.place
        backup = _Backup(head, remote, run_folders, place, memory)
        # The checkpoints of a running training are the latest, and are copied first.
        latest_first = sorted(by_folder, key=lambda f: by_folder[f][0].changed, reverse=True)
        for folder in latest_first:
            copied += backup.copy_newest(folder, by_folder[folder], notes, lost)
    if lost:
        each = "; ".join(shortened(lost))
        raise GpubedError(
            f"{len(lost)} path(s) in {remote} could not be copied to {place}: {each}",
            "repair them, or copy nothing: lease.before_end.collect: false",
        )
    done = [f"collected {copied} checkpoint(s) into {place}"] if copied else []
    return [*done, *shortened(notes)]


def _listed(
    head: SSH, remote: str, run_folders: Collection[PurePosixPath]
) -> tuple[list[Entry], list[str]]:
    """Return all entries, also those behind links on the way to folders that runs name."""
    entries, lost = below(head, remote), list[str]()
    followed = {path for folder in run_folders for path in (folder, *folder.parents)}
    for link in [each.path for each in entries if each.kind == "l" and each.path in followed]:
        try:
            inside = below(head, f"{remote}/{link}")
        except (NotAName, Unreachable):
            raise
        except GpubedError as error:
            lost.append(f"{_shown(link)}: {error.message}")
            continue
        entries += [replace(each, path=link / each.path) for each in inside]
    return entries, lost


def _folders(
    entries: Iterable[Entry], run_folders: Collection[PurePosixPath]
) -> tuple[dict[PurePosixPath, list[_Checkpoint]], list[str]]:
    """Return the checkpoints of each folder, and a sentence for each file outside of folders.

    The folder of a checkpoint is the nearest one that a run names, else the outermost one.
    """
    grouped = defaultdict[PurePosixPath, dict[PurePosixPath, list[Entry]]](dict)
    lost = set[str]()
    for entry in entries:
        if entry.kind != "f":
            continue
        above = [*entry.path.parents][:-1]  # the nearest first
        if above:
            folder = next((path for path in above if path in run_folders), above[-1])
            path = folder / entry.path.relative_to(folder).parts[0]
            grouped[folder].setdefault(path, []).append(entry)
        elif not _NO_CHECKPOINT.fullmatch(entry.path.name):
            lost.add(f"{_shown(entry.path)}: it is in no folder: move it into one")
    all_ = {folder: _checkpoints(folder, by_path) for folder, by_path in grouped.items()}
    return {folder: some for folder, some in all_.items() if some}, sorted(lost)


def _checkpoints(
    folder: PurePosixPath, by_path: dict[PurePosixPath, list[Entry]]
) -> list[_Checkpoint]:
    """Return the checkpoints of a folder, the latest first."""
    unsorted = [
        _Checkpoint(
            path,
            tuple(entries),
            has_sum=entries[0].path == path and path.with_name(f"{path.name}{_SUM}") in by_path,
            unfit="a name is not UTF-8: rename it there"
            if any(NOT_UTF_8 in str(entry.path) for entry in entries)
            else folder_fault(str(folder)),
        )
        for path, entries in by_path.items()
        if not _NO_CHECKPOINT.fullmatch(path.name)
    ]
    return sorted(unsorted, key=lambda checkpoint: checkpoint.changed, reverse=True)


def _shown(path: PurePosixPath) -> str:
    return f"checkpoints/{path if str(path).isprintable() else repr(str(path))}"


@dataclass(frozen=True)
class _Backup:
    head: SSH
    remote: str
    run_folders: Collection[PurePosixPath]
    place: Path
    memory: Memory

    def copy_newest(
        self, folder: PurePosixPath, found: list[_Checkpoint], notes: list[str], lost: list[str]
    ) -> bool:
        """Copy the newest intact checkpoint of a folder if there is no copy; return whether it did.

        Appends sentences to `notes`, and to `lost` those about checkpoints without a copy.
        """
        damaged = list[str]()
        for checkpoint in found[:_MOST_TRIED]:
            try:
                copied = self._copy(folder, checkpoint, notes, damaged)
            except (NotAName, Unreachable):
                raise
            except (GpubedError, OSError) as error:  # an older checkpoint is better than none
                lost.append(f"{_shown(checkpoint.path)}: {getattr(error, 'message', str(error))}")
                continue
            if copied is not None:
                notes += damaged
                return copied
        lost += damaged  # perhaps only the `.sha256` files are damaged
        return False

    def _copy(
        self, folder: PurePosixPath, checkpoint: _Checkpoint, notes: list[str], damaged: list[str]
    ) -> bool | None:
        """Copy a checkpoint if there is no copy, and remove older ones; None if it is damaged."""
        if checkpoint.unfit:
            raise GpubedError(checkpoint.unfit)
        shown, name = _shown(checkpoint.path), checkpoint.path.name
        into, key = self.place / lock_name(str(folder)), f"checkpoints/{folder}"
        has_copy, memory, changed = (into / name).exists(), self.memory, checkpoint.changed[0]
        if has_copy and memory.looked.get(key) == checkpoint.digest:
            return False
        wanted = ""
        if checkpoint.has_sum:  # checked on the head, so that damaged checkpoints are not copied
            path = f"{self.remote}/{checkpoint.path}"
            output = self.head.run(_READ_SUMS, path, f"{path}{_SUM}", timeout=_SUM_S).stdout
            wanted = output[:64]
            if wanted not in _DIGEST.findall(output[64:].lower()):
                damaged.append(f"{shown} is damaged: its SHA-256 is another")
                return False if has_copy else None  # the copy was made while it was intact
        left_out = self._transfer(folder, checkpoint, wanted, into)
        if lacking := [why for why in left_out if why.endswith(copying.NOT_COPIED_TARGETS)]:
            raise GpubedError("; ".join(lacking))
        notes += [f"{shown}: {why}" for why in left_out]
        for other in into.iterdir() if changed >= memory.changed.get(key, changed) else ():
            if other.name not in (name, f"{name}{_SUM}"):
                _remove(other)
        memory.looked[key], memory.changed[key] = checkpoint.digest, changed
        return True

    def _transfer(
        self, folder: PurePosixPath, checkpoint: _Checkpoint, wanted: str, into: Path
    ) -> list[str]:
        """Copy a checkpoint, and replace its copy if all of it arrived intact."""
        into.mkdir(parents=True, exist_ok=True)
        if why := copying.too_large(checkpoint.size, into):
            raise GpubedError(why)
        with tempfile.TemporaryDirectory(prefix=".gpubed-", dir=into) as draft:
            copy = Path(draft) / checkpoint.path.name
            left_out = self.head.get(f"{self.remote}/{checkpoint.path}", copy)
            for entry in checkpoint.entries:
                file = copy / entry.path.relative_to(checkpoint.path)
                if not file.is_file() or file.stat().st_size != entry.size:
                    why = f"{_shown(entry.path)} was not copied completely"
                    raise GpubedError("; ".join([why, *left_out]))
            parts = [copy] if copy.is_file() else (p for p in copy.rglob("*") if p.is_file())
            sums = record.sums(Path(draft), sorted(parts))
            if wanted and sums.removeprefix("\\")[:64] != wanted:
                raise GpubedError(f"it came with another SHA-256 than {wanted}")
            if not wanted:
                entries, _ = _listed(self.head, self.remote, self.run_folders)
                present, _ = _folders(entries, self.run_folders)
                if all(other.digest != checkpoint.digest for other in present.get(folder, ())):
                    raise GpubedError("it changed while it was copied")
            _remove(into / copy.name)
            copy.replace(into / copy.name)
            files.write(into / f"{copy.name}{_SUM}", sums.encode(), durable=True)
        return left_out


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)

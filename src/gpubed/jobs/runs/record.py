"""`run.json`: what a run was asked for, where it ran, with what, and its result.

The file is written before a run starts and again at its end. A run that is `running` there although
no process holds its lock was killed.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticSerializationError

from gpubed.core import copying, files, reading, runlock
from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.core.reading import Unreadable
from gpubed.core.units import Moment
from gpubed.jobs import job_progress

FILE, SUMS, LOCK, OUTPUT, ORIGIN = "run.json", "SHA256SUMS", "lock", "output.log", "origin"
OWN = frozenset((FILE, SUMS, LOCK, OUTPUT, ORIGIN))
"""What gpubed itself writes into a run's folder: nothing by these names is taken from a node."""
State = Literal["running", "ok", "failed", "interrupted"]
_LARGEST = 4 * 2**20  # bytes
_PART = 2**20
_MOST = 50_000  # files and folders of a job, which are copied one after the other
_TAIL = 2**16  # bytes at the end of the output that are searched for progress
# Escapes in names, as GNU's `sha256sum` writes them; the backslash comes first, as the others
# contain it.
_ESCAPES = {"\\": r"\\", "\n": r"\n", "\r": r"\r"}
# Far above real values; results computed from them stay finite numbers and valid dates.
_Count = Annotated[int, Field(ge=0, le=1_000_000)]
MOST_BPS = 10**15
Rate = Annotated[float, Field(ge=0, le=MOST_BPS)]
"""Of a link, in bit/s."""
_Seconds = Annotated[float, Field(ge=0, le=1e9)]


class _Model(BaseModel):
    # Records of a later version may have more fields.
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class Choice(_Model):
    """The part of the cluster that was asked for; all of it by default."""

    nodes: int | None = None
    ranks: int | None = None
    on: tuple[str, ...] = ()


class Request(_Model):
    """What a run was asked for: all that is needed to repeat it.

    Attributes:
        job: A folder of `jobs/`; for a command, the name of its runs.
        command: What each rank runs, if it is no job of `jobs/`.
        folder: The folder that the command was called in, which is copied to the nodes.
        per_node: Whether the command starts once per node, and starts the node's ranks itself.
        settings: Arguments that differ from the job's defaults, as they were written.
        container: The image that ranks run in, if it is not the job's.
        launcher: The launcher, if it is not the job's.
        stall_after_s: End the run once ranks of Horovod waited for others for so many seconds.
    """

    job: str
    command: tuple[str, ...] = ()
    folder: str = ""
    per_node: bool = False
    settings: dict[str, str] = {}
    choice: Choice = Choice()
    container: str | None = None
    launcher: str | None = None
    stall_after_s: _Seconds | None = None

    @property
    def what(self) -> str:
        """What a user types to ask for it, without options: the job, or the command."""
        return f"-- {shlex.join(self.command)}" if self.command else self.job


class Host(_Model):
    """A node with ranks, and a description of its hardware."""

    name: str
    id: str
    slots: _Count
    gpus: _Count = 0
    hardware: str | None = None


class Commit(_Model):
    """State of the project's git repository.

    Attributes:
        clean: Whether nothing was changed since the commit.
        changes: Checksum of the changes, without the contents of untracked files.
    """

    commit: str
    clean: bool
    changes: str = ""

    def __str__(self) -> str:
        top = "" if self.clean else f", with changes on top ({self.changes[:8]})"
        return f"{self.commit[:12]}{top}"


class Origin(_Model):
    """What a run was made with: two runs of one origin are repetitions.

    Attributes:
        recipe_sha256: Checksum of the recipe's lock: each package's version and hash.
        spec_sha256: Checksum of `cluster.yml`.
        job_sha256: Checksum of the job's folder.
        rate_bps: Limit of the experiment network's links, in bit/s; None without one.
        image: Id of the image that ranks ran in; empty without one.
        packages_sha256: Checksum of the lock of the project's own packages; empty without any.
        rates_bps: Measured rate of each link, in bit/s, by `a>b`: just before the run if it limited
            links, else by the last verification.
        variables_sha256: Checksums of the owner's group_vars, and of the host_vars of the head and
            of each node with ranks, by name; empty in records of former versions.
    """

    cluster: str
    uuid: str
    gpubed: str
    recipe: str
    recipe_sha256: str
    spec_sha256: str
    job_sha256: str
    git: Commit | None = None
    hosts: tuple[Host, ...] = ()
    rate_bps: Annotated[int, Field(ge=0, le=MOST_BPS)] | None = None
    image: str = ""
    packages_sha256: str = ""
    rates_bps: dict[str, Rate] = {}
    variables_sha256: dict[str, str] = {}


class Progress(_Model):
    """How far a job came, by the last progress line of its output.

    Attributes:
        what: What was counted, such as epochs.
        words: The job's own text, such as its rate.
    """

    done: int
    of: int
    what: str
    words: str = ""

    def __str__(self) -> str:
        return ", ".join(filter(None, [self.reached, self.words]))

    @property
    def reached(self) -> str:
        """The progress without the job's own text."""
        return f"{self.what}: {self.done} of {self.of}"


class Cause(_Model):
    """Why a run failed.

    Attributes:
        kind: Such as `exception` or `out_of_memory`; docs/how-to/runs.md lists them.
        rank: The rank that failed first; None if it was none, or is unknown.
        node: Its node.
        message: A sentence that names them.
        at: When it failed, by the clock of its node; None if that is unknown.
    """

    kind: str
    rank: int | None = None
    node: str | None = None
    message: str
    at: Moment | None = None

    @property
    def short(self) -> str:
        """The kind, and the place if it has one."""
        parts = ["" if self.rank is None else f"rank {self.rank}", self.node or ""]
        place = " on ".join(filter(None, parts))
        return self.kind.replace("_", " ") + (f": {place}" if place else "")


class Record(_Model):
    """The record of one run.

    Attributes:
        command: What each rank ran.
        values: Every argument with the value that it had.
        set: The name that repetitions have in common; empty for a single run.
        repetition: Number of the repetition, from 0; None for a single run.
        again: The run that it repeated.
        resumes: The run from whose checkpoint it was to go on.
        elastic: Whether it is a part of an elastic training.
        by: The verb that measured with it; empty for a run that a user asked for.
        seconds: How long it took; None while it runs, and if it was killed.
        progress: How far it is, or came if it did not end well; None if the job prints no progress.
        cause: Why it failed; None if it did not, or its controller was killed.
        last_words: The last lines on stderr of the rank that failed first.
        shared_with: Runs that were at work on its nodes at the same time.
        devices: Devices it computed on, each once, as its job says; several if its trials differ.
    """

    contract: Literal["gpubed/run-record/1"] = Field(default="gpubed/run-record/1", alias="schema")
    run_id: str
    request: Request
    origin: Origin
    command: tuple[str, ...]
    values: dict[str, Any]
    world_size: _Count
    started: Moment
    state: State = "running"
    set: str = ""
    repetition: int | None = None
    again: str = ""
    resumes: str = ""
    elastic: bool = False
    by: str = ""
    seconds: _Seconds | None = None
    failures: tuple[str, ...] = ()
    cause: Cause | None = None
    last_words: tuple[str, ...] = ()
    simulated: tuple[str, ...] = ()
    metrics: dict[str, Any] = {}
    progress: Progress | None = None
    shared_with: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return the record for JSON, with the keys of `run --json`."""
        own = self.model_dump(mode="json", by_alias=True)
        own.pop("schema")
        return {**own, "job": self.request.job, "status": own.pop("state")}


@contextmanager
def kept(folder: Path, record: Record) -> Iterator[None]:
    """Hold the run's lock and write its record; record an exception as the end of the run."""
    with runlock.locked(folder / LOCK, "run"):
        write(folder, record)
        try:
            yield
        except BaseException as error:
            state: State = "failed" if isinstance(error, Exception) else "interrupted"
            name = type(error).__name__ if state == "failed" else "it was interrupted"
            reason = getattr(error, "message", "") or name
            kind = "node_lost" if getattr(error, "is_silence", False) else "exit"
            kind = "cancelled" if state == "interrupted" else kind
            cause = Cause(kind=kind, message=reason, at=now())
            told = {"state": state, "failures": (reason,), "progress": _progress(folder)}
            # The wall clock, as for `started`; it may have been set back since.
            took = round(max(0.0, (now() - record.started).total_seconds()), 3)
            write(folder, record.model_copy(update={**told, "cause": cause, "seconds": took}))
            if state == "failed":
                seal(folder)
            raise


def write(folder: Path, record: Record) -> None:
    """Write a run's record into its folder on the controller; see `written`."""
    files.write(folder / FILE, written(record), durable=True)


def written(record: Record) -> bytes:
    """Return the content of a record's file.

    Raises:
        UsageError: It has text that UTF-8 cannot write.
    """
    try:
        return record.model_dump_json(by_alias=True, indent=2).encode()
    except PydanticSerializationError as error:
        raise UsageError(
            f"the run cannot be described: {error}", "give all of it as UTF-8"
        ) from None


def undescribed(paths: ClusterPaths) -> list[Path]:
    """Return the folders of runs that ended before they had a record: at most a lock is in them."""
    return [
        folder
        for folder in sorted(paths.runs.glob("*"))
        if folder.is_dir() and not folder.is_symlink()
        if {path.name for path in folder.iterdir()} <= {LOCK}
    ]


def read(folder: Path) -> Record:
    """Read a run's record.

    Raises:
        Unreadable: It is missing, as in runs of a former version, or damaged, or it is that of
            another run, as in a copied folder.
    """
    document = reading.file(folder / FILE, limit=_LARGEST)
    record = document.json(Record)
    if record.run_id != folder.name:
        raise document.refusal(f"it is about run {record.run_id!r}, and not of this folder")
    if record.state == "running" and runlock.holder(folder) is None:
        record = record.model_copy(update={"state": "interrupted"})
    if record.state != "ok" and record.progress is None:
        return record.model_copy(update={"progress": _progress(folder)})
    return record


def _progress(folder: Path) -> Progress | None:
    try:
        with (folder / OUTPUT).open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL))
            lines = log.read(_TAIL).decode(errors="replace").splitlines()
    except OSError:
        return None
    told = next(filter(None, map(job_progress.read, reversed(lines))), None)
    if told is None:
        return None
    done, of, what, words = told
    return Progress(done=done, of=of, what=what, words=words)


def every(paths: ClusterPaths) -> tuple[dict[Path, Record], list[Unreadable]]:
    """Return a cluster's runs by folder, oldest first, and the errors of unreadable records."""
    records, faults = dict[Path, Record](), list[Unreadable]()
    for folder in sorted(paths.runs.glob("*")):
        if folder.is_dir() and not folder.is_symlink():
            try:
                records[folder] = read(folder)
            except reading.Missing:
                continue  # made by a former version
            except Unreadable as error:
                faults.append(error)
    # By time, as former versions named runs in local time, which repeats an hour in autumn.
    return dict(sorted(records.items(), key=lambda one: (one[1].started, one[0]))), faults


def find(paths: ClusterPaths, name: str) -> Record:
    """Return a run by its name, the beginning of one, or `last`: the last that a user started.

    Raises:
        UsageError: No run matches, or several do.
        Unreadable: Its record is damaged; for `last`, all records are.
    """
    meant = _last(paths) if name == "last" else _beginning(paths, name)
    if len(meant) == 1:
        return read(paths.runs / meant[0])
    if name == "last":
        raise UsageError(f"cluster {paths.name} has no run yet", f"gpubed run {paths.name} JOB")
    several = f"{len(meant)} runs of {paths.name} begin with {name!r}"
    raise UsageError(
        several if meant else f"cluster {paths.name} has no run {name!r}",
        f"gpubed runs {paths.name}",
    )


def _last(paths: ClusterPaths) -> list[str]:
    records, faults = every(paths)
    if faults and not records:
        raise faults[-1]
    return [folder.name for folder, one in records.items() if not one.by][-1:]


def _beginning(paths: ClusterPaths, name: str) -> list[str]:
    names = sorted(path.name for path in paths.runs.glob("*") if (path / FILE).is_file())
    return [name] if name in names else [one for one in names if one.startswith(name)]


def now() -> datetime:
    """Return the time, in UTC."""
    return datetime.now(UTC)


def seal(folder: Path) -> None:
    """Write the checksum of each file of a run, in the form of `sha256sum`."""
    files.write(folder / SUMS, sums(folder, _files(folder)).encode(), durable=True)


def sums(folder: Path, paths: Iterable[Path]) -> str:
    """Return the checksums of files in a folder, a line each, in the form of `sha256sum`."""
    return "".join(_sum(_sha256(path), str(path.relative_to(folder))) for path in paths)


def unsealed(folder: Path) -> list[str]:
    """Return the files of a run that were changed, added or removed since it was sealed."""
    try:
        text = reading.file(folder / SUMS).text()
    except Unreadable:
        return [SUMS]
    # Not `splitlines`: names may contain Unicode's other line separators.
    sums = dict(map(_named_sum, filter(None, text.split("\n"))))
    there = {str(path.relative_to(folder)): path for path in _files(folder)}
    changed = [name for name in sums if name not in there or _sha256(there[name]) != sums[name]]
    return sorted([*changed, *(name for name in there if name not in sums)])


def _sum(digest: str, name: str) -> str:
    """Write a line as `sha256sum` does: a backslash at its start marks an escaped name."""
    for character, written in _ESCAPES.items():
        name = name.replace(character, written)
    return "\\" * ("\\" in name) + f"{digest}  {name}\n"


def _named_sum(line: str) -> tuple[str, str]:
    digest, _, name = line.removeprefix("\\").partition("  ")
    if line.startswith("\\"):
        meant = {written: character for character, written in _ESCAPES.items()}
        name = re.sub(r"\\[\\nr]", lambda found: meant[found[0]], name)
    return name, digest


def _files(folder: Path) -> Iterator[Path]:
    own = {folder / SUMS, folder / LOCK}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path not in own:
            yield path


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_PART):
            digest.update(part)
    return digest.hexdigest()


def sha256_of_files(folder: Path, names: Iterable[str]) -> str:
    """Return one checksum of the names and contents of files; a link counts by its target.

    Raises:
        UsageError: A file cannot be read.
    """
    digest = hashlib.sha256()
    for name in names:
        path = folder / name
        try:
            what = path.readlink() if path.is_symlink() else _sha256(path)
        except OSError as error:
            why = f"{path} cannot be read: {error.strerror}"
            raise UsageError(why, "make it readable, or list it in .gpubedignore") from None
        digest.update(f"{what}  {name}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def sha256_of_folder(folder: Path) -> str:
    """Return one checksum of the names and contents of all files that a copy of a folder has.

    Links are followed as by `copying.put`; `__pycache__` does not count.

    Raises:
        UsageError: A link is broken or circular, something cannot be read or copied, or there is
            too much of it.
    """
    lines, at = list[str](), folder
    try:
        for at in _copied(folder, (folder.resolve(),), itertools.count(1)):
            lines.append(f"{_sha256(at)}  {at.relative_to(folder)}\n")
    except OSError as error:
        where, why = error.filename or at, error.strerror or str(error)
        raise UsageError(f"{where} cannot be read: {why}", f"move it out of {folder}") from None
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _copied(folder: Path, way: tuple[Path, ...], found: Iterator[int]) -> Iterator[Path]:
    """Yield the files of a folder as `copying.put` finds them.

    Args:
        way: Resolved paths of the folders that it is in, and of itself as the last.
        found: Counts files and folders: nested links may multiply the copies without end.
    """
    for path in sorted(folder.iterdir()):
        if next(found) > _MOST:
            raise UsageError(
                f"{way[0]} would be more than {_MOST:,} files and folders to copy",
                "keep data in the cluster's datasets; what a link leads to is copied once for each "
                "way there",
            )
        real, link = way[-1] / path.name, path.is_symlink()
        if link and not path.exists():
            raise _misleading(path, "nowhere")
        if link and (real := real.resolve()) in way:
            raise _misleading(path, "to a folder that it is in")
        if why := copying.copy_fault(path):
            raise UsageError(f"{str(path)!r} cannot be copied: {why}", "move it elsewhere")
        if path.is_file():
            yield path
        elif path.is_dir() and path.name != "__pycache__":
            yield from _copied(path, (*way, real), found)


def _misleading(link: Path, where: str) -> UsageError:
    return UsageError(f"the link {link} leads {where}", f"remove {link}, or correct it")


def sha256_of(path: Path) -> str:
    """Return a file's checksum; empty where there is none."""
    return _sha256(path) if path.is_file() else ""

"""`run.json`: the request, the origin and the result of a run.

The file is written before a run starts and again at its end. If it has the state `running` although
no process holds the run's lock, the run was killed.
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
"""Names of gpubed's own files in a run's folder; files of a node by these names are not copied."""
State = Literal["running", "ok", "failed", "interrupted"]
_LARGEST = 4 * 2**20  # bytes
_MOST = 50_000  # files and folders of a job
_TAIL = 2**16  # bytes at the end of the output that are searched for progress
# Escapes in names, as in GNU's `sha256sum`; the backslash first, as the others contain it.
_ESCAPES = {"\\": r"\\", "\n": r"\n", "\r": r"\r"}
# Bounds far above real values, so that results computed from records are finite and valid dates.
_Count = Annotated[int, Field(ge=0, le=1_000_000)]
MOST_BPS = 10**15
Rate = Annotated[float, Field(ge=0, le=MOST_BPS)]
"""Rate of a link, in bit/s."""
_Seconds = Annotated[float, Field(ge=0, le=1e9)]


class _Model(BaseModel):
    # Records of a later version may have more fields.
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class Choice(_Model):
    """The requested part of the cluster; by default the whole cluster."""

    nodes: int | None = None
    ranks: int | None = None
    on: tuple[str, ...] = ()


class Request(_Model):
    """The user's request, with which a run can be repeated.

    Attributes:
        job: A folder of `jobs/`; for a command, the name of its runs.
        command: The command of each rank, if it is no job of `jobs/`.
        folder: The command's working directory, which is copied to the nodes.
        per_node: Whether the command starts once per node, and starts the node's ranks itself.
        settings: Arguments that differ from the job's defaults, as the user wrote them.
        container: The container image of ranks, if it is not the job's.
        launcher: The launcher, if it is not the job's.
        stall_after_s: Seconds that Horovod's ranks may wait for others before the run ends.
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
        """The job or the command as the user types it, without options."""
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
        clean: Whether there are no uncommitted changes.
        changes: Checksum of the changes, without the contents of untracked files.
    """

    commit: str
    clean: bool
    changes: str = ""

    def __str__(self) -> str:
        top = "" if self.clean else f", with changes on top ({self.changes[:8]})"
        return f"{self.commit[:12]}{top}"


class Origin(_Model):
    """Files, versions and nodes of a run: runs with the same origin and request are repetitions.

    Attributes:
        recipe_sha256: Checksum of the recipe's lock: each package's version and hash.
        spec_sha256: Checksum of `cluster.yml`.
        job_sha256: Checksum of the job's folder.
        rate_bps: Declared rate of the experiment network's links, in bit/s; None if undeclared.
        image: Id of the ranks' container image; empty without one.
        packages_sha256: Checksum of the lock of the project's own packages; empty without any.
        rates_bps: Measured rate of each link, in bit/s, by `a>b`: of the last verification, or
            measured just before the run if it limited links.
        variables_sha256: Checksums of the user's group_vars, and of the host_vars of the head and
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
    """The last progress line in a job's output.

    Attributes:
        what: The unit, such as epochs.
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
        rank: The rank that failed first; None if unknown, or if no rank failed.
        node: The node of that rank.
        message: A sentence with rank, node and cause.
        at: Time of the failure by the clock of the node; None if unknown.
    """

    kind: str
    rank: int | None = None
    node: str | None = None
    message: str
    at: Moment | None = None

    @property
    def short(self) -> str:
        """The kind, and rank and node if known."""
        parts = ["" if self.rank is None else f"rank {self.rank}", self.node or ""]
        place = " on ".join(filter(None, parts))
        return self.kind.replace("_", " ") + (f": {place}" if place else "")


class Record(_Model):
    """The record of one run.

    Attributes:
        command: The command of each rank.
        values: All arguments and their values.
        set: The common name of repetitions; empty for a single run.
        repetition: Number of the repetition, from 0; None for a single run.
        again: The run that it repeats.
        resumes: The run from whose checkpoint it resumes.
        elastic: Whether it is part of an elastic training.
        by: The verb that measured with it; empty for a run that a user started.
        seconds: Duration; None while it runs, and if it was killed.
        progress: The last progress, unless it succeeded; None if the job prints no progress.
        cause: Why it failed; None if it did not, or its controller was killed.
        last_words: The last lines on stderr of the rank that failed first.
        shared_with: Runs on its nodes at the same time.
        devices: Devices that its job reported, each once; several if trials differ.
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
            end = {"state": state, "failures": (reason,), "progress": _progress(folder)}
            # By the wall clock, which may have been set back since `started`.
            took = round(max(0.0, (now() - record.started).total_seconds()), 3)
            write(folder, record.model_copy(update={**end, "cause": cause, "seconds": took}))
            if state == "failed":
                seal(folder)
            raise


def write(folder: Path, record: Record) -> None:
    """Write a run's record into its folder on the controller; raises as `written` does."""
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
            f"the run cannot be recorded: {error}", "give all arguments as UTF-8"
        ) from None


def undescribed(paths: ClusterPaths) -> list[Path]:
    """Return the folders of runs that ended before their record: they have a lock at most."""
    return [
        folder
        for folder in sorted(paths.runs.glob("*"))
        if folder.is_dir() and not folder.is_symlink()
        if {path.name for path in folder.iterdir()} <= {LOCK}
    ]


def read(folder: Path) -> Record:
    """Read a run's record.

    Raises:
        Unreadable: It is missing, damaged, or of another run, as in a copied folder.
    """
    document = reading.file(folder / FILE, limit=_LARGEST)
    record = document.json(Record)
    if record.run_id != folder.name:
        raise document.refusal(f"it is the record of run {record.run_id!r}, not of this folder")
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
    found = next(filter(None, map(job_progress.read, reversed(lines))), None)
    if found is None:
        return None
    done, of, what, words = found
    return Progress(done=done, of=of, what=what, words=words)


def every(paths: ClusterPaths) -> tuple[dict[Path, Record], list[Unreadable]]:
    """Return a cluster's runs by folder, oldest first, and the errors of unreadable records."""
    records, faults = dict[Path, Record](), list[Unreadable]()
    for folder in sorted(paths.runs.glob("*")):
        if folder.is_dir() and not folder.is_symlink():
            try:
                records[folder] = read(folder)
            except reading.Missing:
                continue  # a run of a former version
            except Unreadable as error:
                faults.append(error)
    # By time: former versions named runs in local time, which repeats an hour in autumn.
    return dict(sorted(records.items(), key=lambda item: (item[1].started, item[0]))), faults


def find(paths: ClusterPaths, name: str) -> Record:
    """Return a run by its name or a prefix of it; `last` is the last run that a user started.

    Raises:
        UsageError: No run matches, or several do.
        Unreadable: Its record is damaged; for `last`, all records are.
    """
    if name == "last":
        records, faults = every(paths)
        if faults and not records:
            raise faults[-1]
        if runs := [record for record in records.values() if not record.by]:
            return runs[-1]
        raise UsageError(f"cluster {paths.name} has no run yet", f"gpubed run {paths.name} JOB")
    names = sorted(path.name for path in paths.runs.glob("*") if (path / FILE).is_file())
    found = [name] if name in names else [other for other in names if other.startswith(name)]
    if len(found) == 1:
        return read(paths.runs / found[0])
    why = f"{len(found)} runs of {paths.name} begin with {name!r}"
    if not found:
        why = f"cluster {paths.name} has no run {name!r}"
    raise UsageError(why, f"gpubed runs {paths.name}")


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
    """Return the files of a run that differ from its checksums, or lack one."""
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
    """Return a line of `sha256sum`: a backslash at the start marks an escaped name."""
    for character, written in _ESCAPES.items():
        name = name.replace(character, written)
    return "\\" * ("\\" in name) + f"{digest}  {name}\n"


def _named_sum(line: str) -> tuple[str, str]:
    digest, _, name = line.removeprefix("\\").partition("  ")
    if line.startswith("\\"):
        characters = {written: character for character, written in _ESCAPES.items()}
        name = re.sub(r"\\[\\nr]", lambda found: characters[found[0]], name)
    return name, digest


def _files(folder: Path) -> Iterator[Path]:
    own = {folder / SUMS, folder / LOCK}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path not in own:
            yield path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_of_files(folder: Path, names: Iterable[str]) -> str:
    """Return one checksum of the names and contents of files; of links, the target's path.

    Raises:
        UsageError: A file cannot be read.
    """
    digest = hashlib.sha256()
    for name in names:
        path = folder / name
        try:
            content = path.readlink() if path.is_symlink() else _sha256(path)
        except OSError as error:
            why = f"{path} cannot be read: {error.strerror}"
            raise UsageError(why, "make it readable, or list it in .gpubedignore") from None
        digest.update(f"{content}  {name}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()


def sha256_of_folder(folder: Path) -> str:
    """Return one checksum of the names and contents of all files that `copying.put` would copy.

    Links are followed; `__pycache__` is left out.

    Raises:
        UsageError: A link is broken or circular, a file cannot be read or copied, or there are too
            many files.
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
        way: Resolved paths of the folder and of the folders above it, outermost first.
        found: Counts files and folders, which nested links may multiply without end.
    """
    for path in sorted(folder.iterdir()):
        if next(found) > _MOST:
            raise UsageError(
                f"{way[0]} would be more than {_MOST:,} files and folders to copy",
                "keep data in the cluster's datasets; the target of links is copied for each link",
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
    """Return a file's checksum; empty if there is no file."""
    return _sha256(path) if path.is_file() else ""

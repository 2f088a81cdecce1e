"""Reads and changes a cluster's record, `.gpubed/NAME/cluster.json`.

The record has the cluster's identity, testbeds and marks of runs, and outlives Pulumi's state.
Beside it, `specifications/` keeps each `cluster.yml` that created resources on a testbed; removing
one there declares that none of its resources are left.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, BaseModel, ConfigDict

from gpubed.core import files, reading
from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths


class Made(BaseModel):
    """A testbed that the cluster was made on."""

    backend: str  # the testbed's kind
    id: str = ""  # the testbed's id; empty if its kind has none, or it could not be asked
    called: str = ""  # the testbed's name for people
    # Names of the kept specifications that were applied there, in order
    specifications: list[str] = []


class Record(BaseModel):
    """Facts about a cluster that are kept outside Pulumi's state."""

    model_config = ConfigDict(extra="ignore")

    version: Literal[1] = 1
    # The UUID on all of the cluster's resources on a testbed
    uuid: Annotated[str, AfterValidator(lambda text: str(UUID(text)))] | None = None
    testbeds: list[Made] = []  # the testbeds that the cluster was made on, in order
    # The step that a run began and did not finish: changing nodes or applying roles
    unfinished: Literal["", "roles", "nodes"] = ""
    removing: str | None = None  # the originator of an unfinished `down`; empty for a person
    killed: bool = False  # whether a killed run may have left resources that no state has
    reshaped: bool = False  # whether links may have another rate than declared
    left_out: dict[str, str] = {}  # nodes that a Pulumi plugin could not make, and why
    without: list[str] = []  # the own hosts that a running `down` skips
    # The node that serves the shared storage from its own disk
    served: dict[str, Any] | None = None
    jupyterlab_port: int | None = None  # the port of the last JupyterLab setup

    def last(self, backend: str = "") -> str:
        """Return the name of the last applied specification, optionally of one kind of testbed."""
        for made in reversed(self.testbeds):
            if made.specifications and backend in ("", made.backend):
                return made.specifications[-1]
        return ""


def read(paths: ClusterPaths) -> Record:
    """Return a cluster's record, after migrating the files of a former version."""
    try:
        found = _stored(paths)
    except reading.Missing:
        if not _is_former(paths):
            return _found(paths)
        with suppress(OSError), changed(paths) as taken_over:
            return taken_over
        return _former(paths)
    testbeds = [made for made in found.testbeds if _counts(paths, made)]
    return found.model_copy(update={"testbeds": testbeds})


@contextmanager
def changed(paths: ClusterPaths, *, anew: bool = False) -> Iterator[Record]:
    """Change the record under a lock; calls must not be nested.

    `anew` replaces a damaged record, which otherwise raises `Unreadable`.
    """
    files.make(paths.state)
    with _locked(paths.record):
        before, former = None, False
        try:
            before = _stored(paths)
        except reading.Missing:
            former = _is_former(paths)
        except reading.Unreadable:
            if not anew:
                raise
        if before:
            known = before.model_copy(deep=True)
            known.testbeds = [made for made in known.testbeds if _counts(paths, made)]
        else:
            known = _former(paths, anew=anew) if former else _found(paths)
            if former:
                _move_specifications(paths)
        yield known
        if known != (before or Record()) or former:
            told = known.model_dump(mode="json", exclude_defaults=True)
            text = json.dumps({"version": known.version, **told}, indent=1)
            files.write(paths.record, text.encode(), durable=True)
        if former:
            _remove_former(paths)


def was_made(paths: ClusterPaths) -> bool:
    """Return whether the cluster has a state or a UUID, so may have resources on a testbed."""
    try:
        return paths.has_stack or read(paths).uuid is not None
    except reading.Unreadable:
        return True


def uuid(paths: ClusterPaths) -> str | None:
    """Return the cluster's UUID; None if the record has none."""
    return read(paths).uuid


def keep_uuid(paths: ClusterPaths, wanted: str) -> None:
    """Store a cluster's UUID, replacing a damaged record; raise `UsageError` if it is no UUID."""
    try:
        text = str(UUID(wanted))
    except ValueError:
        raise UsageError(f"{wanted!r} is no UUID", f"gpubed audit {paths.name}") from None
    with changed(paths, anew=True) as known:
        known.uuid = text


def specifications(paths: ClusterPaths, backend: str) -> list[Path]:
    """Return the kept specifications that were applied on a kind of testbed, in order."""
    testbeds = [made for made in read(paths).testbeds if made.backend == backend]
    names = dict.fromkeys(name for made in testbeds for name in made.specifications)
    return [paths.specifications / name for name in names]


def put_back(paths: ClusterPaths, name: str = "") -> str:
    """Return the shell command that restores a kept specification, by default the last one."""
    name = name or read(paths).last()
    if not name:
        return ""
    made = "" if paths.inventory.is_dir() else f"mkdir -p {shlex.quote(str(paths.inventory))} && "
    aside = "--backup=numbered " if paths.spec.exists() else ""
    copy = shlex.quote(str(paths.specifications / name))
    return f"{made}cp {aside}{copy} {shlex.quote(str(paths.spec))}"


def _stored(paths: ClusterPaths) -> Record:
    found = reading.file(paths.record, _fix(paths, paths.record))
    if not found.data:
        raise reading.Missing(f"{paths.record} is empty")
    return found.json(Record)


def _fix(paths: ClusterPaths, path: Path) -> str:
    then = f"gpubed audit {paths.name} tells what exists, and the uuid that it carries"
    return f"rm {shlex.quote(str(path))}   (then: {then})"


def _counts(paths: ClusterPaths, made: Made) -> bool:
    there = [name for name in made.specifications if (paths.specifications / name).is_file()]
    counts = bool(there) or not made.specifications
    made.specifications = there
    return counts


def _found(paths: ClusterPaths) -> Record:
    kinds = defaultdict[str, list[str]](list)
    for path in sorted(paths.specifications.glob("*-*.yml"), key=lambda path: path.stat().st_mtime):
        kinds[path.name.rpartition("-")[0]].append(path.name)
    return Record(testbeds=[Made(backend=kind, specifications=kinds[kind]) for kind in kinds])


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            # Changes replace the file, and `down` removes it: a lock on the old inode is void.
            if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
                yield
                return
        finally:
            os.close(descriptor)


# Former versions kept each fact in a separate file.
_FORMER = (
    *("uuid", "testbeds", "unfinished", "removing", "killed", "reshaped", "left_out.json"),
    *("without.json", "served.json", "door.json"),
)


class _Note(BaseModel):
    """A testbed in a former version's files; `copies` has the ids by specification digest."""

    id: str = ""
    called: str = ""
    copies: dict[str, str] | None = None


def _is_former(paths: ClusterPaths) -> bool:
    return any((paths.state / name).exists() for name in _FORMER)


def _former(paths: ClusterPaths, *, anew: bool = False) -> Record:
    state = paths.state
    known = Record(killed=(state / "killed").exists(), reshaped=(state / "reshaped").exists())
    with suppress(reading.Missing):
        found = reading.file(state / "uuid", _fix(paths, state / "uuid"))
        try:
            known.uuid = str(UUID(found.text().strip()))
        except ValueError:
            if not anew:
                raise found.refusal("it holds no UUID") from None
    with suppress(reading.Missing):
        known.removing = reading.file(state / "removing").text()
    with suppress(reading.Missing):
        by_engine = reading.file(state / "unfinished").data == b"nodes\n"
        known.unfinished = "nodes" if by_engine else "roles"
    with suppress(reading.Unreadable):  # all nodes are asked for again
        known.left_out = reading.file(state / "left_out.json").json(dict[str, str])
    with suppress(reading.Missing):
        fix = f"remove it, when all data of {paths.name} are where they should be"
        known.served = reading.file(state / "served.json", fix).json(dict[str, Any])
    with suppress(reading.Unreadable, KeyError):
        known.jupyterlab_port = reading.file(state / "door.json").json(dict[str, int])["port"]
    kinds = {path.stem for path in (state / "testbeds").glob("*.*")}
    known.testbeds = [made for kind in sorted(kinds) for made in _former_testbeds(paths, kind)]
    return known


def _former_testbeds(paths: ClusterPaths, kind: str) -> list[Made]:
    folder, note = paths.state / "testbeds", _Note()
    with suppress(reading.Missing):
        path = folder / f"{kind}.json"
        note = reading.file(path, f"remove {path}, if nothing of it is on {kind}").json(_Note)
    led = defaultdict[str, list[str]](list)
    last = folder / f"{kind}.yml"
    for copy in (*sorted((folder / "attempts").glob(f"{kind}-*.yml")), last):
        if copy.is_file():
            text = reading.file(copy).data
            before = note.id if copy == last else ""
            id_ = before if note.copies is None else note.copies.get(digest(text), "")
            led[id_].append(f"{kind}-{digest(text)}.yml")
    led[note.id] = led.pop(note.id, [])  # it was the last one
    return [
        Made(backend=kind, id=id_, called=note.called if id_ == note.id else "", specifications=of)
        for id_, of in led.items()
    ]


def _move_specifications(paths: ClusterPaths) -> None:
    for copy in (paths.state / "testbeds").rglob("*.yml"):
        files.make(paths.specifications)
        text = reading.file(copy).data
        kind = copy.stem if copy.parent.name == "testbeds" else copy.stem.rpartition("-")[0]
        files.write(paths.specifications / f"{kind}-{digest(text)}.yml", text, durable=True)


def _remove_former(paths: ClusterPaths) -> None:
    for path in (paths.state / name for name in _FORMER):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def digest(text: bytes) -> str:
    """Return the digest in a kept specification's name: 12 hex digits of its SHA-256."""
    return hashlib.sha256(text).hexdigest()[:12]

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
    """A testbed on which the cluster had resources."""

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
    testbeds: list[Made] = []  # in the order of use
    # The step that a run began and did not finish: changing nodes or applying roles
    unfinished: Literal["", "roles", "nodes"] = ""
    # What began an unfinished `down`: "watch", or empty for a person; None without such a `down`
    removing: str | None = None
    # Whether a killed run, or a plugin that failed, may have left resources that the state does not
    # have as they are.
    killed: bool = False
    reshaped: bool = False  # whether links may have another rate than declared
    left_out: dict[str, str] = {}  # nodes that a Pulumi plugin could not make, with the reasons
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
        return _stored(paths)
    except reading.Missing:
        if not _is_former(paths):
            return _rebuilt(paths)
    with suppress(OSError), changed(paths) as migrated:
        return migrated
    return _former(paths)


@contextmanager
def changed(paths: ClusterPaths, *, replaces_damaged: bool = False) -> Iterator[Record]:
    """Change the record under a lock; calls must not be nested.

    `replaces_damaged` replaces a damaged record, which otherwise raises `Unreadable`.
    """
    files.make(paths.state)
    with _locked(paths.record):
        before, former = None, False
        try:
            before = _stored(paths)
        except reading.Missing:
            former = _is_former(paths)
        except reading.Unreadable:
            if not replaces_damaged:
                raise
        if before:
            record = before.model_copy(deep=True)
        elif former:
            record = _former(paths, replaces_damaged=replaces_damaged)
            _move_specifications(paths)
        else:
            record = _rebuilt(paths)
        yield record
        if record != (before or Record()) or former:
            content = record.model_dump(mode="json", exclude_defaults=True)
            text = json.dumps({"version": record.version, **content}, indent=1)
            files.write(paths.record, text.encode(), durable=True)
        if former:
            _remove_former(paths)


def was_made(paths: ClusterPaths) -> bool:
    """Return whether the cluster may have resources on a testbed: it has a state or a UUID."""
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
    with changed(paths, replaces_damaged=True) as record:
        record.uuid = text


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
    mkdir = "" if paths.inventory.is_dir() else f"mkdir -p {shlex.quote(str(paths.inventory))} && "
    backup = "--backup=numbered " if paths.spec.exists() else ""
    copy = shlex.quote(str(paths.specifications / name))
    return f"{mkdir}cp {backup}{copy} {shlex.quote(str(paths.spec))}"


def _stored(paths: ClusterPaths) -> Record:
    found = reading.file(paths.record, _fix(paths, paths.record))
    if not found.data:
        raise reading.Missing(f"{paths.record} is empty")
    record = found.json(Record)
    testbeds, record.testbeds = record.testbeds, []
    for made in testbeds:
        names = made.specifications
        made.specifications = [name for name in names if (paths.specifications / name).is_file()]
        if made.specifications or not names:
            record.testbeds.append(made)
    return record


def _fix(paths: ClusterPaths, path: Path) -> str:
    then = f"gpubed audit {paths.name} lists existing resources with their uuid"
    return f"rm {shlex.quote(str(path))}   (then: {then})"


def _rebuilt(paths: ClusterPaths) -> Record:
    """Return a record with the testbeds of the kept specifications."""
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
            # Changes replace the file and `down` removes it, so the locked inode may be stale.
            if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
                yield
                return
        finally:
            os.close(descriptor)


# Former versions kept each field in a separate file.
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


def _former(paths: ClusterPaths, *, replaces_damaged: bool = False) -> Record:
    state = paths.state
    record = Record(killed=(state / "killed").exists(), reshaped=(state / "reshaped").exists())
    with suppress(reading.Missing):
        found = reading.file(state / "uuid", _fix(paths, state / "uuid"))
        try:
            record.uuid = str(UUID(found.text().strip()))
        except ValueError:
            if not replaces_damaged:
                raise found.refusal("it holds no UUID") from None
    with suppress(reading.Missing):
        record.removing = reading.file(state / "removing").text()
    with suppress(reading.Missing):
        by_engine = reading.file(state / "unfinished").data == b"nodes\n"
        record.unfinished = "nodes" if by_engine else "roles"
    with suppress(reading.Unreadable):  # without it, `up` asks for all nodes again
        record.left_out = reading.file(state / "left_out.json").json(dict[str, str])
    with suppress(reading.Missing):
        fix = f"remove it, once all data of {paths.name} are in their place"
        record.served = reading.file(state / "served.json", fix).json(dict[str, Any])
    with suppress(reading.Unreadable, KeyError):
        record.jupyterlab_port = reading.file(state / "door.json").json(dict[str, int])["port"]
    kinds = {path.stem for path in (state / "testbeds").glob("*.*")}
    record.testbeds = [made for kind in sorted(kinds) for made in _former_testbeds(paths, kind)]
    return record


def _former_testbeds(paths: ClusterPaths, kind: str) -> list[Made]:
    folder, note = paths.state / "testbeds", _Note()
    with suppress(reading.Missing):
        path = folder / f"{kind}.json"
        note = reading.file(path, f"remove {path}, if nothing of it is on {kind}").json(_Note)
    by_id = defaultdict[str, list[str]](list)
    last = folder / f"{kind}.yml"
    for copy in (*sorted((folder / "attempts").glob(f"{kind}-*.yml")), last):
        if copy.is_file():
            text = reading.file(copy).data
            id_ = note.id if copy == last else ""
            if note.copies is not None:
                id_ = note.copies.get(digest(text), "")
            by_id[id_].append(f"{kind}-{digest(text)}.yml")
    by_id[note.id] = by_id.pop(note.id, [])  # moves the last testbed to the end
    return [
        Made(backend=kind, id=id_, called=note.called if id_ == note.id else "", specifications=of)
        for id_, of in by_id.items()
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

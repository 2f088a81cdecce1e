"""The testbeds that a cluster was made on: noted, and told from others of their kind.

A specification may name another testbed by now, while what was made on the former one is still
there: data that outlives nodes, or what a killed run had begun. So each is noted beside the
cluster's UUID before anything is made on it, and the specification that led to it is kept
(`copies`); the UUID is forgotten when all of them are empty. Of a testbed that has an id of its own
(a Docker daemon, a cloud's project and region), that is noted, too: another one knows nothing of
the cluster.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from gpubed.core import files, reading
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import ClusterPaths
from gpubed.spec import backend_config
from gpubed.testbeds import copies, identities
from gpubed.testbeds.base import Identity, Testbed


class _Note(BaseModel):
    """A testbed that a cluster was made on.

    Attributes:
        id: Which of its kind; empty where that had none, or could not be asked.
        called: What people know it by.
        copies: The ids to which kept specifications led, by the copies' digests; None in a note
            of a former version.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: Literal[1] = 1
    id: str = ""
    called: str = ""
    copies: dict[str, str] | None = None


class AnotherTestbed(PrerequisiteMissing):
    """It is of the same kind as the one that the cluster was made on, and not the same."""


def noted(paths: ClusterPaths) -> list[str]:
    """Return the names of the backends that a cluster was made on."""
    return [name for name in backend_config.names() if _file(paths, name).exists()]


def note(testbed: Testbed) -> None:
    """Note that something of a cluster is made on a testbed; what was noted of it stays."""
    try:
        had = _read(testbed)
    except reading.Missing:
        now = None
        with suppress(GpubedError):  # who makes something there says why it cannot be asked
            now = testbed.identity()
        # Where copies are older than the note, somebody said that nothing is where they led.
        older = copies.every(testbed.paths, testbed.backend.name)
        digests = {copies.digest(copy): now.id for copy in older} if now else {}
        _write(testbed, _Note(copies=digests), now)
        return
    if not had.id:
        with suppress(GpubedError):
            require_same(testbed)


def keep_specification(testbed: Testbed) -> None:
    """Keep a copy of the specification that is about to be applied, and to which testbed it led.

    Raises:
        Unreadable: What was noted cannot be read.
    """
    paths, name, had = testbed.paths, testbed.backend.name, _read(testbed)
    noted = _noted_copies(testbed, had)
    if had.id:
        noted[copies.keep(paths, name)] = had.id
    else:
        copies.keep(paths, name)
    there = {copies.digest(copy) for copy in copies.every(paths, name)}
    noted = {digest: id_ for digest, id_ in noted.items() if digest in there}
    if noted != had.copies:
        _write(testbed, had.model_copy(update={"copies": noted}))


def forget_attempts(testbed: Testbed) -> None:
    """Forget the specifications of former runs on a testbed; of others of its kind they stay."""
    with suppress(GpubedError):
        but = [copy for copy, _ in elsewhere(testbed)]
        copies.forget_attempts(testbed.paths, testbed.backend.name, but)


def require_same(testbed: Testbed) -> None:
    """Refuse a testbed that is not the one that the cluster was made on.

    One that has something under the cluster's UUID is the same, whatever its id is by now. Where
    a former version noted less, the specification that was applied last tells.

    Raises:
        AnotherTestbed: It is another one.
        Unreadable: What was noted cannot be read.
        GpubedError: The testbed cannot be asked.
    """
    paths, backend = testbed.paths, testbed.backend
    try:
        had = _read(testbed)
    except reading.Missing:
        return
    now = testbed.identity()
    if now is None or now.id == had.id:
        return
    former: Identity | None = Identity(had.id, had.called)
    if not had.id or had.id in now.formerly:
        copy = copies.last(paths, backend.name)
        former = _led_to(testbed, copy) if copy.is_file() else now
    if former is None:
        return  # nobody can tell, so that it is not noted, either
    uuid = identities.kept(paths)
    if former.id == now.id or (uuid and any(thing.uuid == uuid for thing in testbed.existing())):
        _write(testbed, had, now)
        return
    raise AnotherTestbed(
        f"{now.called} has nothing of {paths.name} and is not the one that it was made on: "
        f"{former.called}, with the id {former.id}",
        f"{backend.the_way_back}; only if that one is no more (a daemon that was installed anew), "
        f"with what it had: {forget_command(paths, backend.name)}, and again",
    )


def elsewhere(testbed: Testbed) -> Iterator[tuple[Path, Testbed]]:
    """Yield the kept specifications that may have led to another testbed of the kind, and that.

    Raises:
        Unreadable: What was noted cannot be read.
        GpubedError: The testbed itself cannot be asked.
    """
    paths, name = testbed.paths, testbed.backend.name
    try:
        had = _read(testbed)
    except reading.Missing:
        return
    now = testbed.identity()
    if now is None:
        return
    noted, ours = _noted_copies(testbed, had), {now.id, *now.formerly}
    for copy in copies.every(paths, name):
        if noted.get(copies.digest(copy)) in ours:
            continue
        led_to = _led_to(testbed, copy)
        if led_to is None or led_to.id != now.id:
            yield copy, _by(testbed, copy)


def _noted_copies(testbed: Testbed, had: _Note) -> dict[str, str]:
    """Return the ids to which kept specifications led, by digest, as far as they are noted."""
    if had.copies is not None:
        return dict(had.copies)
    # A former version noted it with the one that it applied last, and kept that.
    last = copies.last(testbed.paths, testbed.backend.name)
    return {copies.digest(last): had.id} if had.id and last.is_file() else {}


def _led_to(testbed: Testbed, copy: Path) -> Identity | None:
    """Return where a kept specification leads; None where that cannot be asked any more."""
    with suppress(GpubedError):
        return _by(testbed, copy).identity()
    return None


def _by(testbed: Testbed, copy: Path) -> Testbed:
    return testbed.backend.bind(testbed.reach.by(copy), testbed.paths)


def forget_command(paths: ClusterPaths, backend: str) -> str:
    """Return the command that says that nothing of a cluster is on a testbed any more."""
    return f"rm {shlex.quote(str(_file(paths, backend)))}"


def _file(paths: ClusterPaths, backend: str) -> Path:
    return paths.testbeds / f"{backend}.json"


def _read(testbed: Testbed) -> _Note:
    name, path = testbed.backend.name, _file(testbed.paths, testbed.backend.name)
    return reading.file(path, f"remove {path}, if nothing of it is on {name}").json(_Note)


def _write(testbed: Testbed, noted: _Note, now: Identity | None = None) -> None:
    paths = testbed.paths
    paths.testbeds.mkdir(parents=True, exist_ok=True)
    if now:
        noted = noted.model_copy(update={"id": now.id, "called": now.called})
    content = noted.model_dump_json(indent=1).encode()
    files.write(_file(paths, testbed.backend.name), content, durable=True)  # the UUID goes by it

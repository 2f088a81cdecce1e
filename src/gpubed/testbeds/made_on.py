"""The testbeds that a cluster was made on: noted, told from others of their kind, asked together.

A specification may name another testbed by now, while what was made on the former one is still
there: data that outlives nodes, or what a killed run had begun. So each is noted beside the
cluster's UUID before anything is made on it, and the specification that led to it is kept
(`copies`); the UUID is forgotten when all of them are empty. Of a testbed that has an id of its own
(a Docker daemon, a cloud's project and region), that is noted, too: another one knows nothing of
the cluster.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from gpubed.core import files, reading
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import ClusterPaths
from gpubed.spec import backend_config
from gpubed.testbeds import identities
from gpubed.testbeds.base import Existing, Identity, Testbed


class _Note(BaseModel):
    """A testbed that a cluster was made on; `id` is empty where its kind or version has none."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: Literal[1] = 1
    id: str = ""
    called: str = ""


class AnotherTestbed(PrerequisiteMissing):
    """It is of the same kind as the one that the cluster was made on, and not the same."""


def noted(paths: ClusterPaths) -> list[str]:
    """Return the names of the backends that a cluster was made on."""
    return [name for name in backend_config.names() if _file(paths, name).exists()]


def note(testbed: Testbed) -> None:
    """Note that something of a cluster is made on a testbed; what was noted of it stays."""
    paths, name = testbed.paths, testbed.backend.name
    with suppress(reading.Missing):
        if _read(paths, name).id:
            return
    now = None
    with suppress(GpubedError):  # who makes something there says why it cannot be asked
        now = testbed.identity()
    if now or not _file(paths, name).exists():
        _write(paths, name, now)


def require_same(testbed: Testbed) -> None:
    """Refuse a testbed that is not the one that the cluster was made on.

    One that has something under the cluster's UUID is the same, whatever its id is by now.

    Raises:
        AnotherTestbed: It is another one.
        Unreadable: What was noted cannot be read.
        GpubedError: The testbed cannot be asked.
    """
    paths, backend = testbed.paths, testbed.backend
    try:
        had = _read(paths, backend.name)
    except reading.Missing:
        return
    now = testbed.identity() if had.id else None
    if now is None or now.id == had.id:
        return
    uuid = identities.kept(paths)
    if uuid and any(thing.uuid == uuid for thing in testbed.existing()):
        _write(paths, backend.name, now)
        return
    raise AnotherTestbed(
        f"{now.called} has nothing of {paths.name} and is not the one that it was made on: "
        f"{had.called}, with the id {had.id}",
        f"{backend.the_way_back}; only if that one is no more (a daemon that was installed anew), "
        f"with what it had: {forget_command(paths, backend.name)}, and again",
    )


def forget_command(paths: ClusterPaths, backend: str) -> str:
    """Return the command that says that nothing of a cluster is on a testbed any more."""
    return f"rm {shlex.quote(str(_file(paths, backend)))}"


@dataclass(frozen=True)
class Listed:
    """What testbeds have under a cluster's name.

    Attributes:
        things: What there is; what must go first comes first.
        unasked: The testbeds that could not be asked, with why and what helps.
    """

    things: list[Existing]
    unasked: list[str]


@dataclass(frozen=True)
class Testbeds:
    """The testbeds that may have something of a cluster.

    Attributes:
        needed: Those without whose answer nothing goes on: of the state, or the only ones.
        others: Those that it was made on before; one that cannot be asked is named.
    """

    needed: tuple[Testbed, ...]
    others: tuple[Testbed, ...] = ()

    def __iter__(self) -> Iterator[Testbed]:
        return iter((*self.needed, *self.others))

    def __bool__(self) -> bool:
        return bool(self.needed or self.others)

    def require_engine(self, engine: str) -> None:
        """Refuse an engine that cannot remove what the state knows.

        Raises:
            PrerequisiteMissing: It is not the one that a testbed needs.
        """
        for testbed in self.needed:
            testbed.backend.require_engine(engine)

    def require_refreshable(self) -> None:
        """Refuse a look at every resource where a plugin would fail on the state of one.

        Raises:
            GpubedError: It would, or a testbed cannot be asked.
        """
        for testbed in self.needed:
            if why := testbed.unrefreshable():
                raise why

    def existing(self) -> Listed:
        """Ask for everything that carries the cluster's name, whatever its UUID.

        Raises:
            AnotherTestbed: One that is needed is not the one that the cluster was made on.
            GpubedError: One that is needed cannot be asked.
        """
        found, unasked = list[Existing](), list[str]()
        for testbed in self.needed:
            found += _asked(testbed)
        for testbed in self.others:
            try:
                found += _asked(testbed)
            except GpubedError as error:
                hint = f" ({error.hint})" if error.hint else ""
                unasked.append(f"{testbed.backend.name} cannot be asked: {error.message}{hint}")
        return Listed(found, unasked)

    def unseen(self, known: Collection[str], left: Collection[str]) -> list[str]:
        """Return what the last `existing` could not look at; see `Testbed.unseen`."""
        return [why for testbed in self for why in testbed.unseen(known, left)]

    def remove(self, things: Sequence[Existing]) -> list[str]:
        """Remove what `existing` listed, each from the testbed that has it; return the names."""
        there = {testbed.backend.name: testbed for testbed in self}
        for thing in things:
            there[thing.backend].remove(thing)
        return [str(thing) for thing in things]

    def data_within(self) -> list[Existing]:
        """Return data that outlives nodes and that only they can reach."""
        return [thing for each in self for thing in _marked(each, each.data_within())]

    def remove_data(self) -> list[Existing]:
        """Remove what `data_within` names; return what of it stays."""
        return [thing for each in self for thing in _marked(each, each.remove_data())]

    @property
    def data_records(self) -> set[str]:
        """Files of the cluster's state by which data is found again; see `Backend`."""
        return {name for testbed in self for name in testbed.backend.data_records}

    def left_as_is(self, uuid: str) -> list[str]:
        """Say what stays on hosts that a `down` goes without, a line each."""
        return [why for testbed in self for why in testbed.left_as_is(uuid)]

    def own_hosts(self) -> dict[str, str]:
        """Return the hosts that are nobody's to take back: by node, where SSH answers."""
        found = dict[str, str]()
        for testbed in self:
            found |= testbed.own_hosts()
        return found

    def note(self) -> None:
        """Note all of them: what stays there must be found again."""
        for testbed in self:
            note(testbed)


def _asked(testbed: Testbed) -> list[Existing]:
    require_same(testbed)
    return _marked(testbed, testbed.existing())


def _marked(testbed: Testbed, things: list[Existing]) -> list[Existing]:
    return [replace(thing, backend=testbed.backend.name) for thing in things]


def _file(paths: ClusterPaths, backend: str) -> Path:
    return paths.testbeds / f"{backend}.json"


def _read(paths: ClusterPaths, backend: str) -> _Note:
    path = _file(paths, backend)
    return reading.file(path, f"remove {path}, if nothing of it is on {backend}").json(_Note)


def _write(paths: ClusterPaths, backend: str, now: Identity | None) -> None:
    paths.testbeds.mkdir(parents=True, exist_ok=True)
    noted = _Note(id=now.id, called=now.called) if now else _Note()
    content = noted.model_dump_json(indent=1).encode()
    files.write(_file(paths, backend), content, durable=True)  # the UUID goes by it

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
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from gpubed.core import files, reading
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import ClusterPaths
from gpubed.spec import backend_config
from gpubed.testbeds import copies, identities
from gpubed.testbeds.base import Existing, Identity, Testbed


class _Note(BaseModel):
    """A testbed that a cluster was made on.

    Attributes:
        id: Which of its kind; empty where that had none, or could not be asked.
        called: What people know it by.
        copies: The ids to which kept specifications led, by the copies' digests; None in a note
            of a former version.
        anew: Whether copies were there before it, so that a note before it was removed: the
            cluster may have been on several testbeds of the kind.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: Literal[1] = 1
    id: str = ""
    called: str = ""
    copies: dict[str, str] | None = None
    anew: bool = False


class AnotherTestbed(PrerequisiteMissing):
    """It is of the same kind as the one that the cluster was made on, and not the same."""


@dataclass(frozen=True)
class Former:
    """A kept specification that may have led to another testbed of the kind.

    Attributes:
        copy: The specification.
        way: The testbed to which it leads.
        id: The one to which it led; empty where nobody noted it.
    """

    copy: Path
    way: Testbed
    id: str

    def existing(self, uuid: str | None) -> list[Existing]:
        """Return what is there under a cluster's UUID; without one, under its name.

        Raises:
            AnotherTestbed: The environment has it lead elsewhere by now.
            GpubedError: The testbed cannot be asked.
        """
        now = self.way.identity()
        if self.id and (now is None or self.id not in (now.id, *now.formerly)):
            leads = now.called if now else "one that does not say which it is"
            raise AnotherTestbed(
                f"it leads to {leads} by now, and led to the one with the id {self.id}",
                self.way.backend.the_way_back,
            )
        return [thing for thing in self.way.existing() if uuid in (None, thing.uuid)]


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
        older = copies.every(testbed.paths, testbed.backend.name)
        _write(testbed, _Note(copies={}, anew=bool(older)), now)
        return
    if not had.id:
        with suppress(GpubedError):
            require_same(testbed)


def keep_specification(testbed: Testbed) -> None:
    """Keep a copy of the specification that is about to be applied, and to which testbed it led.

    Raises:
        AnotherTestbed: The same specification led to another one, which may have something.
        Unreadable: What was noted cannot be read.
    """
    paths, name, had = testbed.paths, testbed.backend.name, _read(testbed)
    noted = _noted_copies(testbed, had)
    led_to = noted.get(copies.digest(paths.spec))
    if had.id and led_to and led_to != had.id and (led := _noted_as(testbed, noted, led_to)):
        raise AnotherTestbed(
            f"what {paths.spec} says led to the testbed with the id {led_to}, and leads to "
            f"{had.called} by now",
            f"{testbed.backend.the_way_back}; or if nothing of {paths.name} is there: "
            f"{copies.forget_command(led[0])}, and again",
        )
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
        but = [former.copy for former in elsewhere(testbed)]
        copies.forget_attempts(testbed.paths, testbed.backend.name, but)


def require_same(testbed: Testbed, *, recorded: bool = True) -> None:
    """Refuse a testbed that is not the one that the cluster was made on.

    One that has something under the cluster's UUID is the same, whatever its id is by now. Where
    a former version noted less, the specification that was applied last tells. While no state
    names anything, the cluster may go on where it was before, and may leave a testbed that has
    nothing of it; `elsewhere` names the others.

    Args:
        testbed: The one of now.
        recorded: Whether the cluster's state names something on a testbed of the kind.

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
    noted = _noted_copies(testbed, had)
    if not had.id or had.id in now.formerly:
        copy = copies.last(paths, backend.name)
        former = _led_to(testbed, copy) if copy.is_file() else now
        if former and copy.is_file():
            noted[copies.digest(copy)] = former.id
    if former is None:
        return  # nobody can tell, so that it is not noted, either
    uuid = identities.kept(paths)
    if former.id != now.id:
        here = [thing for thing in testbed.existing() if uuid and thing.uuid == uuid]
        if here and not had.anew:
            noted = _renamed(testbed, noted, former.id, now.id, here)
        may_go_on = not recorded and (
            now.id in noted.values() or _is_empty(testbed, noted, former.id)
        )
        if not (here or may_go_on):
            raise _another(testbed, now, former)
    _write(testbed, had.model_copy(update={"copies": noted}), now)


def _another(testbed: Testbed, now: Identity, former: Identity) -> AnotherTestbed:
    name, backend = testbed.paths.name, testbed.backend
    how = f" ({backend.is_no_more})" if backend.is_no_more else ""
    return AnotherTestbed(
        f"{now.called} has nothing of {name} and is not the one that it was made on: "
        f"{former.called}, with the id {former.id}",
        f"{backend.the_way_back}; to leave that one: do so, gpubed down {name}, edit it again, "
        f"gpubed up {name}; only if that one is no more{how}, with what it had: "
        f"{forget_command(testbed.paths, backend.name)}, and again",
    )


def _renamed(
    testbed: Testbed, noted: dict[str, str], former: str, now: str, here: list[Existing]
) -> dict[str, str]:
    """Return where kept specifications led, of a testbed that may have another id by now.

    It is the former one where the cluster was never on a second one: each copy led there, and
    what still answers there has nothing else of the cluster.
    """
    every = copies.every(testbed.paths, testbed.backend.name)
    if any(noted.get(copies.digest(copy)) != former for copy in every):
        return noted
    known, uuid = {(thing.kind, thing.id) for thing in here}, here[0].uuid
    for copy in every:
        with suppress(GpubedError):  # a former name need not answer any more
            there = _by(testbed, copy).existing()
            if any((t.kind, t.id) not in known for t in there if t.uuid == uuid):
                return noted
    return dict.fromkeys(noted, now)


def _is_empty(testbed: Testbed, noted: dict[str, str], former: str) -> bool:
    """Say whether a former testbed was asked, and has nothing of the cluster."""
    uuid, led = identities.kept(testbed.paths), _noted_as(testbed, noted, former)
    try:
        return bool(led) and not any(
            Former(copy, _by(testbed, copy), former).existing(uuid) for copy in led
        )
    except GpubedError:
        return False


def elsewhere(testbed: Testbed) -> Iterator[Former]:
    """Yield the kept specifications that may have led to another testbed of the kind.

    Of one that is noted with another id, that counts, wherever the environment leads by now.

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
    noted = _noted_copies(testbed, had)
    for copy in copies.every(paths, name):
        id_ = noted.get(copies.digest(copy), "")
        if id_ and id_ not in now.formerly:
            if id_ != now.id:
                yield Former(copy, _by(testbed, copy), id_)
            continue
        led_to = _led_to(testbed, copy)
        if led_to is None and id_:
            continue  # nobody can tell any more, and a former version took it for this one
        if led_to is None or led_to.id != now.id:
            yield Former(copy, _by(testbed, copy), "")


def _noted_copies(testbed: Testbed, had: _Note) -> dict[str, str]:
    """Return the ids to which kept specifications led, by digest, as far as they are noted."""
    if had.copies is not None:
        return dict(had.copies)
    # A former version noted it with the one that it applied last, and kept that.
    last = copies.last(testbed.paths, testbed.backend.name)
    return {copies.digest(last): had.id} if had.id and last.is_file() else {}


def _noted_as(testbed: Testbed, noted: dict[str, str], id_: str) -> list[Path]:
    """Return the kept specifications that led to a testbed."""
    every = copies.every(testbed.paths, testbed.backend.name)
    return [copy for copy in every if noted.get(copies.digest(copy)) == id_]


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
    found = reading.file(path, f"remove {path}, if nothing of it is on {name}").json(_Note)
    spelled, had = testbed.backend.spelled, found.copies
    digests = None if had is None else {digest: spelled(id_) for digest, id_ in had.items()}
    return found.model_copy(update={"id": spelled(found.id), "copies": digests})


def _write(testbed: Testbed, noted: _Note, now: Identity | None = None) -> None:
    paths = testbed.paths
    files.make(paths.testbeds)
    if now:
        noted = noted.model_copy(update={"id": now.id, "called": now.called})
    content = noted.model_dump_json(indent=1).encode()
    files.write(_file(paths, testbed.backend.name), content, durable=True)  # the UUID goes by it

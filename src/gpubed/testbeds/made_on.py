"""The testbeds that a cluster was made on: noted, told from others of their kind, asked together.

A specification may name another testbed by now, while what was made on the former one is still
there: data that outlives nodes, or what a killed run had begun. So each is noted in the cluster's
record before anything is made on it, with the specification that led there; the cluster's UUID is
forgotten when all of them are empty.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from gpubed.core import record
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import ClusterPaths
from gpubed.core.record import Made, Record
from gpubed.testbeds.base import Existing, Identity, Testbed


class AnotherTestbed(PrerequisiteMissing):
    """It is of the same kind as the one that the cluster was made on, and not the same."""


@dataclass(frozen=True)
class Unasked:
    """Which testbed could not be asked and why, and the command that says it has nothing."""

    why: str
    forget: str

    def __str__(self) -> str:
        return self.why


@dataclass(frozen=True)
class Listed:
    """What testbeds have under a cluster's name, first what must go first; which were not asked."""

    things: list[Existing]
    unasked: list[Unasked]


@dataclass(frozen=True)
class Left:
    """What carries a cluster's UUID where a former specification led, and how it is removed."""

    thing: Existing
    back: str

    def __str__(self) -> str:
        return f"{self.thing}, where a former specification led; what removes it: {self.back}"


@dataclass(frozen=True)
class Testbeds:
    """The testbeds that may have something of a cluster.

    Attributes:
        needed: Those without whose answer nothing goes on: of the state, or the only ones.
        others: Those that it was made on before; one that cannot be asked is named.
        recorded: The kinds on which the state names something, or may have begun it.
    """

    needed: tuple[Testbed, ...]
    others: tuple[Testbed, ...] = ()
    recorded: frozenset[str] = frozenset()

    def __iter__(self) -> Iterator[Testbed]:
        return iter((*self.needed, *self.others))

    def __bool__(self) -> bool:
        return bool(self.needed or self.others)

    def of(self, backend: str) -> Testbed:
        """Return the one of a kind."""
        return next(testbed for testbed in self if testbed.backend.name == backend)

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
        found, unasked = list[Existing](), list[Unasked]()
        for testbed in self:
            try:
                self.require_same(testbed)
                found += _marked(testbed, testbed.existing())
            except GpubedError as error:
                if testbed in self.needed:
                    raise
                forget = forget_command(testbed.paths, testbed.backend.name)
                unasked.append(Unasked(_why(testbed, error), forget))
        return Listed(found, unasked)

    def require_same(self, testbed: Testbed) -> None:
        """Refuse one of them that is not the one that the cluster was made on."""
        require_same(testbed, recorded=testbed.backend.name in self.recorded)

    def elsewhere(self, uuid: str) -> tuple[list[Left], list[Unasked]]:
        """Ask the other testbeds of the same kinds that the cluster was made on.

        As after an edit of what says which testbed is meant: the one of now knows nothing of the
        cluster, and the former one may have all of it.

        Returns:
            What carries the cluster's UUID there; and which cannot be asked.
        """
        found, unasked = list[Left](), list[Unasked]()
        for testbed in self:
            with suppress(GpubedError):  # that it cannot be asked itself is told by `existing`
                for made in _others(testbed):
                    for name in made.specifications:
                        copy = testbed.paths.specifications / name
                        try:
                            there = _marked(testbed, _asked(testbed, made, name, uuid))
                        except GpubedError as error:
                            why = _why(testbed, error, f", as {copy} says where it is")
                            unasked.append(Unasked(why, f"rm {shlex.quote(str(copy))}"))
                            continue
                        back = record.put_back(testbed.paths, name)
                        back = f"{back}, then gpubed down {testbed.paths.name}"
                        found += [Left(thing, back) for thing in there]
                        break
        return found, unasked

    def unseen(self, known: Collection[str], left: Collection[str]) -> list[str]:
        """Return what the last `existing` could not look at; see `Testbed.unseen`."""
        return [why for testbed in self for why in testbed.unseen(known, left)]

    def remove(self, things: Sequence[Existing]) -> list[str]:
        """Remove what `existing` listed, each from the testbed that has it; return the names."""
        for thing in things:
            self.of(thing.backend).remove(thing)
        return [str(thing) for thing in things]

    def data_within(self) -> list[Existing]:
        """Return data that outlives nodes and that only they can reach."""
        return [thing for each in self for thing in _marked(each, each.data_within())]

    def remove_data(self) -> list[Existing]:
        """Remove what `data_within` names; return what of it stays."""
        return [thing for each in self for thing in _marked(each, each.remove_data())]

    def note(self) -> None:
        """Note all of them: what stays there must be found again."""
        for testbed in self:
            note(testbed)


def kinds(paths: ClusterPaths) -> list[str]:
    """Return the names of the backends that a cluster was made on."""
    return sorted({made.backend for made in record.read(paths).testbeds})


def note(testbed: Testbed, *, applied: bool = False) -> None:
    """Note that something of a cluster is made on a testbed; what was noted of its kind stays.

    Args:
        testbed: Where.
        applied: Whether its specification is about to be applied, and so is kept as the last one.
    """
    known = record.read(testbed.paths)
    if applied or not any(
        made.id for made in known.testbeds if made.backend == testbed.backend.name
    ):
        _note(testbed, applied=applied)


def _note(testbed: Testbed, *, applied: bool = False) -> None:
    now = None
    with suppress(GpubedError):  # who makes something there says why it cannot be asked
        now = testbed.identity()
    had = _of_now(testbed, record.read(testbed.paths), now)
    keeps = bool(applied or had is None or not had.specifications) and testbed.reach.wanted
    if not (keeps or now or had is None):
        return
    with record.changed(testbed.paths) as known:
        made = _of_now(testbed, known, now) or Made(backend=testbed.backend.name)
        if now:
            made.id, made.called = now.id, now.called
        # Not before: one that somebody removed counts no more.
        if keeps and (kept := testbed.reach.keep()):
            made.specifications = [*(n for n in made.specifications if n != kept), kept]
        known.testbeds = [*(one for one in known.testbeds if one is not made), made]


def forget_attempts(testbed: Testbed) -> None:
    """Forget the specifications of former runs on a testbed: what they began has been adopted."""
    with suppress(GpubedError):
        now, paths = testbed.identity(), testbed.paths
        with record.changed(paths) as known:
            if made := _of_now(testbed, known, now):
                made.specifications = made.specifications[-1:]
        kept = {name for made in known.testbeds for name in made.specifications}
        for copy in paths.specifications.glob("*.yml"):
            if copy.name not in kept:
                copy.unlink(missing_ok=True)


def require_same(testbed: Testbed, *, recorded: bool = True) -> None:
    """Refuse a testbed that is not the one that the cluster was made on.

    One that has something under the cluster's UUID is the same, whatever its id is by now. While
    no state names anything, the cluster may go on where it was before, and may leave a testbed
    that has nothing of it.

    Args:
        testbed: The one of now.
        recorded: Whether the cluster's state names something on a testbed of the kind.

    Raises:
        AnotherTestbed: It is another one.
        GpubedError: The testbed cannot be asked, or the record not be read.
    """
    known = record.read(testbed.paths)
    of_kind = [made for made in known.testbeds if made.backend == testbed.backend.name]
    if not of_kind or (now := testbed.identity()) is None:
        return
    same = _of_now(testbed, known, now)
    if same is not of_kind[-1]:
        former = _resolved(testbed, of_kind[-1], now)
        here = [thing for thing in testbed.existing() if known.uuid and thing.uuid == known.uuid]
        may_go_on = not recorded and (same or _is_empty(testbed, former, known.uuid))
        if former.id and not (here or may_go_on):
            how = f" ({testbed.backend.is_no_more})" if testbed.backend.is_no_more else ""
            name = testbed.paths.name
            raise AnotherTestbed(
                f"{now.called} has nothing of {name} and is not the one that it was made on: "
                f"{former.called}, with the id {former.id}",
                f"{testbed.backend.the_way_back}; to leave that one: do so, gpubed down {name}, "
                f"edit it again, gpubed up {name}; only if that one is no more{how}, with what it "
                f"had: {_forget_command(testbed.paths, [former])}, and again",
            )
        if not (here or same):
            return  # noted once something is made there
    if same is None or (same.id, same.called) != (now.id, now.called) or same is not of_kind[-1]:
        _note(testbed)


def forget_command(paths: ClusterPaths, backend: str) -> str:
    """Return the command that says that nothing of a cluster is on a kind of testbed any more."""
    return _forget_command(
        paths, [made for made in record.read(paths).testbeds if made.backend == backend]
    )


def _forget_command(paths: ClusterPaths, testbeds: Sequence[Made]) -> str:
    names = [name for made in testbeds for name in made.specifications]
    copies = [paths.specifications / name for name in names] or [paths.record]
    return f"rm {' '.join(shlex.quote(str(copy)) for copy in copies)}"


def _of_now(testbed: Testbed, known: Record, now: Identity | None) -> Made | None:
    """Return what is noted of the testbed of now; None where nothing is."""
    of_kind = [made for made in reversed(known.testbeds) if made.backend == testbed.backend.name]
    if now is None:
        return next(iter(of_kind), None)
    spelled = testbed.backend.spelled
    return next((made for made in of_kind if made.id and spelled(made.id) == now.id), None) or next(
        (made for made in of_kind if _resolved(testbed, made, now).id == now.id), None
    )


def _resolved(testbed: Testbed, made: Made, now: Identity) -> Made:
    """Return a note with the id that its specification tells where that is not, or hardly, known.

    A former version noted less: what may be the id of others, too.
    """
    if made.id and testbed.backend.spelled(made.id) not in now.formerly:
        return made
    for name in reversed(made.specifications):
        with suppress(GpubedError):
            if led_to := _by(testbed, name).identity():
                return made.model_copy(update={"id": led_to.id, "called": led_to.called})
    return made.model_copy(update={"id": now.id if made.id or not made.specifications else ""})


def _others(testbed: Testbed) -> list[Made]:
    known, now = record.read(testbed.paths), testbed.identity()
    if now is None:
        return []
    here = _of_now(testbed, known, now)
    of_kind = [made for made in known.testbeds if made.backend == testbed.backend.name]
    return [_resolved(testbed, made, now) for made in of_kind if made is not here]


def _is_empty(testbed: Testbed, made: Made, uuid: str | None) -> bool:
    for name in made.specifications:
        with suppress(GpubedError):
            return not _asked(testbed, made, name, uuid)
    return False


def _asked(testbed: Testbed, made: Made, name: str, uuid: str | None) -> list[Existing]:
    """Return what is under the cluster's UUID where a kept specification leads.

    Raises:
        AnotherTestbed: The environment has it lead elsewhere by now.
        GpubedError: The testbed cannot be asked.
    """
    way = _by(testbed, name)
    now = way.identity()
    if made.id and (now is None or testbed.backend.spelled(made.id) != now.id):
        leads = now.called if now else "one that does not say which it is"
        raise AnotherTestbed(
            f"it leads to {leads} by now, and led to the one with the id {made.id}",
            testbed.backend.the_way_back,
        )
    return [thing for thing in way.existing() if uuid in (None, thing.uuid)]


def _by(testbed: Testbed, name: str) -> Testbed:
    paths = testbed.paths
    return testbed.backend.bind(testbed.reach.by(paths.specifications / name), paths)


def _why(testbed: Testbed, error: GpubedError, how: str = "") -> str:
    hint = f" ({error.hint})" if error.hint else ""
    return f"{testbed.backend.name} cannot be asked{how}: {error.message}{hint}"


def _marked(testbed: Testbed, things: list[Existing]) -> list[Existing]:
    return [replace(thing, backend=testbed.backend.name) for thing in things]

"""The testbeds that may have something of a cluster, asked together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from gpubed.core.errors import GpubedError
from gpubed.testbeds import copies, made_on
from gpubed.testbeds.base import Existing, Testbed


@dataclass(frozen=True)
class Listed:
    """What testbeds have under a cluster's name.

    Attributes:
        things: What there is; what must go first comes first.
        unasked: The testbeds that could not be asked.
    """

    things: list[Existing]
    unasked: list[Unasked]


@dataclass(frozen=True)
class Unasked:
    """A testbed that could not be asked.

    Attributes:
        why: Which, why, and what helps.
        forget: The command that says that nothing of the cluster is there.
    """

    why: str
    forget: str

    def __str__(self) -> str:
        return self.why


@dataclass(frozen=True)
class Left:
    """What carries a cluster's UUID where a former specification led.

    Attributes:
        thing: What it is.
        back: The commands by which it is removed.
    """

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
        for testbed in self.needed:
            found += self._asked(testbed)
        for testbed in self.others:
            try:
                found += self._asked(testbed)
            except GpubedError as error:
                forget = made_on.forget_command(testbed.paths, testbed.backend.name)
                unasked.append(Unasked(_why(testbed, error), forget))
        return Listed(found, unasked)

    def require_same(self, testbed: Testbed) -> None:
        """Refuse one of them that is not the one that the cluster was made on.

        Raises:
            AnotherTestbed: It is another one.
            GpubedError: That cannot be told.
        """
        made_on.require_same(testbed, recorded=testbed.backend.name in self.recorded)

    def elsewhere(self, uuid: str) -> tuple[list[Left], list[Unasked]]:
        """Ask the testbeds of the same kinds to which only kept specifications lead.

        As after an edit of what says which testbed is meant: these know nothing of the cluster,
        and the former one may have all of it.

        Returns:
            What carries the cluster's UUID there; and which cannot be asked.
        """
        found, unasked = list[Left](), list[Unasked]()
        for testbed in self:
            with suppress(GpubedError):  # that it cannot be asked itself is told by `existing`
                for former in made_on.elsewhere(testbed):
                    copy = former.copy
                    try:
                        there = _marked(testbed, former.existing(uuid))
                    except GpubedError as error:
                        why = _why(testbed, error, f", as {copy} says where it is")
                        unasked.append(Unasked(why, copies.forget_command(copy)))
                        continue
                    back = copies.put_back_command(testbed.paths, copy)
                    back = f"{back}, then gpubed down {testbed.paths.name}"
                    found += [Left(thing, back) for thing in there]
        return found, unasked

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
            made_on.note(testbed)

    def _asked(self, testbed: Testbed) -> list[Existing]:
        self.require_same(testbed)
        return _marked(testbed, testbed.existing())


def _why(testbed: Testbed, error: GpubedError, how: str = "") -> str:
    hint = f" ({error.hint})" if error.hint else ""
    return f"{testbed.backend.name} cannot be asked{how}: {error.message}{hint}"


def _marked(testbed: Testbed, things: list[Existing]) -> list[Existing]:
    return [replace(thing, backend=testbed.backend.name) for thing in things]

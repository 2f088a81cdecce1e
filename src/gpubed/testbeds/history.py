"""Records the testbeds that a cluster was made on, tells them apart, and asks them together.

A specification may name a new testbed while the former one still has data that outlives nodes, or
what a killed run began. So each testbed is noted before anything is made on it, with the
specification that leads there. The cluster's UUID is forgotten once all of them are empty.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpubed.core import record
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import ClusterPaths
from gpubed.core.record import Made, Record
from gpubed.testbeds.base import Existing, Identity, Testbed


class AnotherTestbed(PrerequisiteMissing):
    """The testbed is of the right kind, but not the one that the cluster was made on."""


class Unasked(NamedTuple):
    """Why a testbed could not be asked, and the command that declares it empty."""

    why: str
    forget: str

    def __str__(self) -> str:
        return self.why


class Listed(NamedTuple):
    """Resources with a cluster's name, in order of removal; and the testbeds not asked."""

    things: list[Existing]
    unasked: list[Unasked]


class Left(NamedTuple):
    """A resource with a cluster's UUID on a former testbed, and how to remove it."""

    thing: Existing
    back: str

    def __str__(self) -> str:
        return f"{self.thing}, where a former specification led; what removes it: {self.back}"


@dataclass(frozen=True)
class Testbeds:
    """The testbeds that may have resources of a cluster."""

    needed: tuple[Testbed, ...]  # those of the state, or the only known ones, must answer
    others: tuple[Testbed, ...] = ()  # former testbeds; one that does not answer is only reported
    recorded: frozenset[str] = frozenset()  # kinds that the state names, or may have begun

    def __iter__(self) -> Iterator[Testbed]:
        return iter((*self.needed, *self.others))

    def __bool__(self) -> bool:
        return bool(self.needed or self.others)

    def of(self, backend: str) -> Testbed:
        """Return the testbed of a kind."""
        return next(testbed for testbed in self if testbed.backend.name == backend)

    def require_engine(self, engine: str) -> None:
        """Refuse, as PrerequisiteMissing, an engine that cannot remove the state's resources."""
        for testbed in self.needed:
            testbed.backend.require_engine(engine)

    def require_refreshable(self) -> None:
        """Raise the error of a testbed whose Pulumi plugin cannot refresh now."""
        for testbed in self.needed:
            if why := testbed.unrefreshable():
                raise why

    def existing(self) -> Listed:
        """List all resources with the cluster's name, of any UUID.

        Raises `AnotherTestbed` if a needed testbed is not the one that the cluster was made on,
        `GpubedError` if a needed testbed cannot be asked.
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
        """Refuse a testbed if it is not the one that the cluster was made on."""
        require_same(testbed, recorded=testbed.backend.name in self.recorded)

    def elsewhere(self, uuid: str, listed: Iterable[Existing]) -> tuple[list[Left], list[Unasked]]:
        """Return what former testbeds of the same kinds have of the cluster, and those that fail.

        After an edit of the specification, the present testbed may have nothing of the cluster, and
        a former one all of it. Both may be the same: what `existing` listed is left out.
        """
        found, unasked, former = list[Left](), list[Unasked](), list[tuple[Testbed, Made]]()
        known = {(thing.kind, thing.id) for thing in listed}
        for testbed in self:
            with suppress(GpubedError):  # `existing` reports an error of the testbed itself
                former += [(testbed, made) for made in _others(testbed)]
        for testbed, made in former:
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
                found += [Left(one, back) for one in there if (one.kind, one.id) not in known]
                break
        return found, unasked

    def unseen(self, known: Collection[str], left: Collection[str]) -> list[str]:
        """Return places that the last `existing` could not check; see `Testbed.unseen`."""
        return [why for testbed in self for why in testbed.unseen(known, left)]

    def remove(self, things: Sequence[Existing]) -> list[str]:
        """Remove resources that `existing` listed, each from its testbed; return their names."""
        for thing in things:
            self.of(thing.backend).remove(thing)
        return [str(thing) for thing in things]

    def data_within(self) -> list[Existing]:
        """Return data that outlives nodes and can only be reached through them."""
        return [thing for each in self for thing in _marked(each, each.data_within())]

    def remove_data(self) -> list[Existing]:
        """Remove the data that `data_within` returns; return what could not be removed."""
        return [thing for each in self for thing in _marked(each, each.remove_data())]

    def note(self) -> None:
        """Note all of them, so that resources that stay there are found again."""
        for testbed in self:
            note(testbed)


def kinds(paths: ClusterPaths) -> list[str]:
    """Return the names of the backends that a cluster was made on."""
    return sorted({made.backend for made in record.read(paths).testbeds})


def note(testbed: Testbed, *, applied: bool = False) -> None:
    """Note a testbed on which something is about to be made; earlier notes of its kind are kept.

    If its specification is about to be `applied`, that is kept as the last one.
    """
    known = record.read(testbed.paths).testbeds
    if applied or not any(made.id and made.backend == testbed.backend.name for made in known):
        _note(testbed, applied=applied)


def _note(testbed: Testbed, *, applied: bool = False) -> None:
    now = None
    with suppress(GpubedError):  # making something there reports the error
        now = testbed.identity()
    had = _of_now(testbed, record.read(testbed.paths), now)
    keeps = bool(applied or had is None or not had.specifications) and testbed.reach.wanted
    if not (keeps or now or had is None):
        return
    with record.changed(testbed.paths) as known:
        made = _of_now(testbed, known, now) or Made(backend=testbed.backend.name)
        if now:
            made.id, made.called = now.id, now.called
        # Kept only now: a testbed whose copy was removed by hand does not count.
        if keeps and (kept := testbed.reach.keep()):
            made.specifications = [*(n for n in made.specifications if n != kept), kept]
        known.testbeds = [*(one for one in known.testbeds if one is not made), made]


def forget_attempts(testbed: Testbed) -> None:
    """Forget the specifications of earlier runs on a testbed, whose resources were adopted."""
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
    """Refuse a testbed if it is not the one that the cluster was made on, as `AnotherTestbed`.

    A testbed with resources of the cluster's UUID is the same, even if its id has changed. While no
    state names a resource on a testbed of the kind (`recorded`), the cluster may return to an
    earlier testbed, and may leave one that has nothing of it.
    """
    known = record.read(testbed.paths)
    of_kind = [made for made in known.testbeds if made.backend == testbed.backend.name]
    if not of_kind or (now := testbed.identity()) is None:
        return
    same, last = _of_now(testbed, known, now), of_kind[-1]
    if same is not last:
        former = _resolved(testbed, last, now)
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
    if same is None or (same.id, same.called) != (now.id, now.called) or same is not last:
        _note(testbed)


def forget_command(paths: ClusterPaths, backend: str) -> str:
    """Return the command that declares a kind of testbed empty of a cluster."""
    return _forget_command(
        paths, [made for made in record.read(paths).testbeds if made.backend == backend]
    )


def _forget_command(paths: ClusterPaths, testbeds: Sequence[Made]) -> str:
    names = [name for made in testbeds for name in made.specifications]
    copies = [paths.specifications / name for name in names] or [paths.record]
    return f"rm {' '.join(shlex.quote(str(copy)) for copy in copies)}"


def _of_now(testbed: Testbed, known: Record, now: Identity | None) -> Made | None:
    of_kind = [made for made in reversed(known.testbeds) if made.backend == testbed.backend.name]
    if now is None:
        return next(iter(of_kind), None)
    spelled = testbed.backend.spelled
    return next((made for made in of_kind if made.id and spelled(made.id) == now.id), None) or next(
        (made for made in of_kind if _resolved(testbed, made, now).id == now.id), None
    )


def _resolved(testbed: Testbed, made: Made, now: Identity) -> Made:
    """Return a note with its testbed's id; older versions noted none, or one that others share."""
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
    """Return the cluster's resources there; AnotherTestbed if the environment leads elsewhere."""
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

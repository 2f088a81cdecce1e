"""Records the testbeds that a cluster was made on, identifies them, and lists their resources.

An edited specification may lead to a new testbed while a former one still has the cluster's data,
or resources of a killed run. So each testbed is recorded before resources are made on it, with a
copy of the specification that leads there.
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
    """The reason why a testbed did not answer, and the command that declares it empty."""

    why: str
    forget: str

    def __str__(self) -> str:
        return self.why


class Listed(NamedTuple):
    """Resources with a cluster's name, in order of removal, and testbeds that did not answer."""

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

    needed: tuple[Testbed, ...]  # testbeds of the state, or the only known ones: must answer
    others: tuple[Testbed, ...] = ()  # former testbeds: need not answer
    recorded: frozenset[str] = frozenset()  # kinds whose resources the state has, or may have

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
                found += _with_backend(testbed, testbed.existing())
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
        """Return the cluster's resources on former testbeds of the same kinds, and those that fail.

        After an edit of the specification, a former testbed may have all of the resources. If it is
        the present one under another id, the resources that `existing` listed are left out.
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
                    there = _with_backend(testbed, _existing_by_copy(testbed, name, made, uuid))
                except GpubedError as error:
                    why = _why(testbed, error, f", as {copy} says where it is")
                    unasked.append(Unasked(why, f"rm {shlex.quote(str(copy))}"))
                    continue
                back = record.put_back(testbed.paths, name)
                back = f"{back}, then gpubed down {testbed.paths.name}"
                new = [thing for thing in there if (thing.kind, thing.id) not in known]
                found += [Left(thing, back) for thing in new]
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
        return [thing for each in self for thing in _with_backend(each, each.data_within())]

    def remove_data(self) -> list[Existing]:
        """Remove the data that `data_within` returns; return what could not be removed."""
        return [thing for each in self for thing in _with_backend(each, each.remove_data())]

    def note(self) -> None:
        """Record all of them, so that resources that stay there are found again."""
        for testbed in self:
            note(testbed)


def kinds(paths: ClusterPaths) -> list[str]:
    """Return the names of the backends that a cluster was made on."""
    return sorted({made.backend for made in record.read(paths).testbeds})


def note(testbed: Testbed, *, applied: bool = False) -> None:
    """Record a testbed before resources are made on it.

    Its present specification becomes the last applied one if it is about to be `applied`.
    """
    known = record.read(testbed.paths).testbeds
    if applied or not any(made.id and made.backend == testbed.backend.name for made in known):
        _note(testbed, applied=applied)


def _note(testbed: Testbed, *, applied: bool = False) -> None:
    now = None
    with suppress(GpubedError):  # creating the resource reports the error
        now = testbed.identity()
    had = _entry(testbed, record.read(testbed.paths), now)
    keeps = bool(applied or had is None or not had.specifications) and testbed.reach.wanted
    if not (keeps or now or had is None):
        return
    with record.changed(testbed.paths) as known:
        made = _entry(testbed, known, now) or Made(backend=testbed.backend.name)
        if now:
            made.id, made.called = now.id, now.called
        # Not earlier: a testbed whose copy was removed by hand does not count.
        if keeps and (kept := testbed.reach.keep()):
            made.specifications = [*(n for n in made.specifications if n != kept), kept]
        known.testbeds = [*(other for other in known.testbeds if other is not made), made]


def forget_attempts(testbed: Testbed) -> None:
    """Forget all but the last specification of a testbed, whose resources were all adopted."""
    with suppress(GpubedError):
        now, paths = testbed.identity(), testbed.paths
        with record.changed(paths) as known:
            if made := _entry(testbed, known, now):
                made.specifications = made.specifications[-1:]
        kept = {name for made in known.testbeds for name in made.specifications}
        for copy in paths.specifications.glob("*.yml"):
            if copy.name not in kept:
                copy.unlink(missing_ok=True)


def require_same(testbed: Testbed, *, recorded: bool = True) -> None:
    """Refuse a testbed if it is not the one that the cluster was made on, as `AnotherTestbed`.

    A testbed with resources of the cluster's UUID is the same, even if its id has changed. While no
    state has a resource of the kind (`recorded`), the cluster may return to an earlier testbed, and
    may leave one that has none of its resources.
    """
    known = record.read(testbed.paths)
    of_kind = [made for made in known.testbeds if made.backend == testbed.backend.name]
    if not of_kind or (now := testbed.identity()) is None:
        return
    same, last = _entry(testbed, known, now), of_kind[-1]
    if same is not last:
        former = _resolved(testbed, last, now)
        here = [thing for thing in testbed.existing() if known.uuid and thing.uuid == known.uuid]
        may_go_on = not recorded and (same or _is_empty(testbed, former, known.uuid))
        if former.id and not (here or may_go_on):
            why, name = testbed.backend.replacement_hint, testbed.paths.name
            how = f" ({why})" if why else ""
            raise AnotherTestbed(
                f"{now.called} has nothing of {name} and is not the one that it was made on: "
                f"{former.called}, with the id {former.id}",
                f"{testbed.backend.return_hint}; to leave that one: do so, gpubed down {name}, "
                f"edit it again, gpubed up {name}; only if that one is no more{how}, with what it "
                f"had: {_forget_command(testbed.paths, [former])}, and again",
            )
        if not (here or same):
            return  # recorded when its first resource is made
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


def _entry(testbed: Testbed, known: Record, now: Identity | None) -> Made | None:
    """Return a testbed's entry in the record, by its identity."""
    of_kind = [made for made in reversed(known.testbeds) if made.backend == testbed.backend.name]
    if now is None:
        return next(iter(of_kind), None)
    for made in of_kind:
        if made.id and testbed.backend.canonical_id(made.id) == now.id:
            return made
    return next((made for made in of_kind if _resolved(testbed, made, now).id == now.id), None)


def _resolved(testbed: Testbed, made: Made, now: Identity) -> Made:
    """Return an entry with a unique id: older versions recorded none, or one that others share."""
    if made.id and testbed.backend.canonical_id(made.id) not in now.formerly:
        return made
    for name in reversed(made.specifications):
        with suppress(GpubedError):
            if former := _by_copy(testbed, name).identity():
                return made.model_copy(update={"id": former.id, "called": former.called})
    return made.model_copy(update={"id": now.id if made.id or not made.specifications else ""})


def _others(testbed: Testbed) -> list[Made]:
    known, now = record.read(testbed.paths), testbed.identity()
    if now is None:
        return []
    here = _entry(testbed, known, now)
    of_kind = [made for made in known.testbeds if made.backend == testbed.backend.name]
    return [_resolved(testbed, made, now) for made in of_kind if made is not here]


def _is_empty(testbed: Testbed, made: Made, uuid: str | None) -> bool:
    for name in made.specifications:
        with suppress(GpubedError):
            return not _existing_by_copy(testbed, name, made, uuid)
    return False


def _existing_by_copy(testbed: Testbed, name: str, made: Made, uuid: str | None) -> list[Existing]:
    """Return the cluster's resources on the testbed that a kept specification names.

    Raises `AnotherTestbed` if it leads to another testbed than before, by variables such as OS_*.
    """
    former = _by_copy(testbed, name)
    now = former.identity()
    if made.id and (now is None or testbed.backend.canonical_id(made.id) != now.id):
        leads = now.called if now else "one that does not say which it is"
        raise AnotherTestbed(
            f"it leads to {leads} by now, and led to the one with the id {made.id}",
            testbed.backend.return_hint,
        )
    return [thing for thing in former.existing() if uuid in (None, thing.uuid)]


def _by_copy(testbed: Testbed, name: str) -> Testbed:
    paths = testbed.paths
    return testbed.backend.bind(testbed.reach.of_copy(paths.specifications / name), paths)


def _why(testbed: Testbed, error: GpubedError, how: str = "") -> str:
    hint = f" ({error.hint})" if error.hint else ""
    return f"{testbed.backend.name} cannot be asked{how}: {error.message}{hint}"


def _with_backend(testbed: Testbed, things: list[Existing]) -> list[Existing]:
    return [replace(thing, backend=testbed.backend.name) for thing in things]

"""A slice's life at the testbed, from nothing to nodes that are ready, and back.

`hold` looks at what exists and does the next step, until none is left. So it goes on in the same
way after a lost answer, a busy testbed or a killed run. The journal is written around each call
that changes something.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from gpubed.backends.virtualwall import faults, journal, prepare, rspec
from gpubed.backends.virtualwall.connection import FINAL, Connection, Description, Slice
from gpubed.backends.virtualwall.faults import Answered, Busy, NoResources, NotThere, Unanswered
from gpubed.backends.virtualwall.journal import Journal
from gpubed.backends.virtualwall.slice_inputs import SliceInputs, description, digest, owner
from gpubed.backends.virtualwall.transport import Patience
from gpubed.core import progress
from gpubed.core.errors import GpubedError, Refused
from gpubed.core.paths import ClusterPaths

_TICKETS = 3  # an allocation lasts ten minutes; losing it twice is not for lack of time
_NEARLY = timedelta(minutes=1)
_REFUSED = (7, 11, 13)  # refused; GCF says: unavailable, unsupported
_EXPIRED = 15
_QUICK_S = 300.0  # for a slice that another request replaces
_REFUSALS = 5  # of a start, until they are believed
_RELEASE_AGAIN = 20  # looks after which an unfinished release is asked for once more
_FIXED = re.compile(r"Could not map (\S+) to")  # of a node that names its machine
_SHORT_OF = re.compile(r"(?:nodes|machines) of type (\S+)")


class Reservation:
    """One cluster's slice, looked for unless the state has its `urn`.

    Only one at a time may write the journal (`keeps`).
    """

    def __init__(
        self,
        wanted: SliceInputs,
        there: Connection,
        paths: ClusterPaths,
        *,
        keeps: bool = True,
        urn: str = "",
    ) -> None:
        self.wanted, self._there, self._paths, self._keeps = wanted, there, paths, keeps
        known = journal.load(paths)
        if known is None or known.uuid != wanted.uuid or (urn and known.slice_urn != urn):
            usual, project = there.slice_urn(wanted.name), there.config.project
            known = Journal(uuid=wanted.uuid, slice_urn=urn or usual, project=project)
        self.journal, self._is_in_state = known, bool(urn)
        self._until = datetime.now(UTC) + timedelta(seconds=wanted.duration)
        self._tickets = self._refusals = 0
        self._was_in_use: bool | None = None  # None until the aggregate has told
        self._started = self._extended = False
        self._told = ""

    @property
    def urn(self) -> str:
        """The slice's URN, as far as known."""
        return self.journal.slice_urn

    def hold(self) -> Description:
        """Bring the slice to where each of its nodes is ready or has failed, and return it.

        Nodes may still be booting when patience ends. NoResources means that the testbed lacks even
        the least that suffices.
        """
        patience, is_entered = self._there.patience(), False
        while True:
            try:
                if not is_entered:
                    self._enter()
                    is_entered = True
                found = self._look()
                if found is None:
                    self._allocate()
                elif self._is_done(found):
                    return found
                elif not self._advance(found):
                    self._tell(found, patience)
                    if not patience.left_s:
                        return found
                    patience.wait()
            except Unanswered as error:
                patience.back_off(error)

    @property
    def grows(self) -> bool:
        """Whether the aggregate adds nodes to a slice that runs."""
        return self._there.grows

    def complete(self, added: frozenset[str] = frozenset()) -> Description | None:
        """Request missing and `added` nodes, keeping the others; None if the slice is gone."""
        found = self.look()
        if found is None:
            return None
        if found.has_ticket:  # of a run that was killed
            if added:
                self._save(request=digest(self.wanted.request))
            found = self.hold()
        if missing := self.wanted.missing(self.judge(found), added):
            self._add(missing)
        if added:
            self._save(request=digest(self.wanted.request))
        return self.hold() if missing or not self._is_done(found) else found

    def admit(self) -> None:
        """Have the nodes that run let in the present keys, and no others; Emulab can do that."""
        act = self._there.act
        if why := refusal(act, self.urn, self.urn, "geni_update_users", self._keys):
            said = (
                f"backend.login_keys is for new nodes only, those that run stay as they are: {why}"
            )
            progress.emit("note", message=said)

    def look(self) -> Description | None:
        """Return what the testbed has of the slice; None if it has nothing."""
        found = self.find()
        owned_by = owner(found.description) if found else None
        is_anothers = owned_by and owned_by[1] != self.wanted.uuid
        return None if found is None or is_anothers else self._look()

    def find(self) -> Slice | None:
        """Return the slice, by its URN as far as known, else by label or name in the project.

        Authorities name slices as they like, and some keep no description. A slice of the same
        name may be another user's.
        """
        wanted, found = self.wanted, self._there.find(self.urn)
        if found is None:
            others = self._there.of_project()
            labels = (wanted.cluster, wanted.uuid)
            labelled = [other for other in others if owner(other.description) == labels]
            named = [other for other in others if other.name == wanted.name]
            found = next(iter([*labelled, *named]), None)
        if found:
            self._rename(found.urn)
        return found

    @property
    def is_a_failed_start(self) -> bool:
        """Whether this run has looked at the slice, and its nodes were never in use."""
        return self._was_in_use is False

    def release(self, total: float | None = None) -> None:
        """Release everything, and wait `total` seconds, or all patience, until it is gone."""
        # The slice that the state or an earlier run had nodes in, in case it has no labels.
        own = self.urn if self._is_in_state or self.journal.request else ""
        if found := self.find():
            owned_by = owner(found.description)
            if owned_by[1] == self.wanted.uuid if owned_by else found.urn == own:
                self._delete_until_gone(self._there.patience(total))
        journal.forget(self._paths)

    def restart(self, sliver: str) -> None:
        """Reboot a node that failed or hangs, and wait until its state is final."""
        self._there.act(self.urn, sliver, "geni_restart")
        patience = self._there.patience()
        while patience.left_s:
            patience.wait()
            found = self._look()
            state = {s.urn: s.operational for s in found.slivers}.get(sliver) if found else None
            if state in (None, *FINAL):
                return

    def judge(self, found: Description) -> dict[str, dict[str, Any]]:
        """Return what became of each node."""
        return self.wanted.judge(found, self.journal.left_out, self._there.login.user.name)

    def _enter(self) -> None:
        wanted = self.wanted
        while (found := self.find()) is None:
            self._save()
            with self._outlasting():
                labels = description(wanted.cluster, wanted.uuid)
                self._rename(self._there.create(wanted.name, self._until, labels))
        name, cluster, owned_by = wanted.name, wanted.cluster, owner(found.description)
        if found.is_closed:
            why = "belongs to another user: the authority tells only its name"
            raise Refused(f"slice {name} {why}", faults.OF_OTHERS)
        if owned_by and owned_by[1] != wanted.uuid:
            raise Refused(
                f"slice {name} belongs to another cluster, {owned_by[0]} ({owned_by[1]})",
                f"gpubed audit {cluster} tells more; another name makes another slice",
            )
        if not owned_by and not self.journal.request and self._describe():
            raise Refused(
                f"slice {name} holds nodes, and nothing says whose they are",
                "give them back with the tool that made them, or use another cluster name",
            )
        if found.expires < self._until - _NEARLY:
            if why := refusal(self._there.renew_slice, self.urn, self._until):
                progress.emit("note", message=f"the slice keeps its end: {why}")
            found = self.find() or found
        # Slivers cannot outlive their slice: asking for more is refused, not cut.
        self._until = found.expires

    def _rename(self, urn: str) -> None:
        self.journal = self.journal.model_copy(update={"slice_urn": urn})

    def _look(self) -> Description | None:
        found = self._describe()
        if found:
            self._saw(found)
        if self._was_in_use is None:
            # Nodes that a run requested and never logged in to are not in use.
            unknown = not self.journal.request
            self._was_in_use = found is not None and (unknown or bool(self._met(found)))
        return found

    def _met(self, found: Description) -> list[str]:
        """Return the existing nodes that a run has logged in to; the journal may list more."""
        there = {sliver.urn for sliver in found.slivers}
        return [name for name, known in journal.nodes(self._paths) if known["id"] in there]

    def _describe(self) -> Description | None:
        with self._outlasting():
            return self._there.describe(self.urn)

    @contextmanager
    def _outlasting(self) -> Iterator[None]:
        """Turn refusals due to remains of an ended slice into Busy: they block its name."""
        try:
            yield
        except Answered as error:
            if not self.journal.request or not faults.is_about_remains(error.said):
                raise
            raise Busy(error.message, error.hint) from None

    def _is_done(self, found: Description) -> bool:
        return found.is_final and self._is_as_wanted()

    def _is_as_wanted(self) -> bool:
        """Return whether the slivers were made with our request, as far as known."""
        return self.journal.request in ("", digest(self.wanted.request))

    def _advance(self, found: Description) -> bool:
        """Do the next step; False if only waiting is left."""
        if not self._is_as_wanted():
            if names := self._met(found):  # the state must have been lost
                cluster = self.wanted.cluster
                raise Refused(
                    f"slice {self.wanted.name} holds {', '.join(names)}, in use, and was asked for "
                    "with another specification than now: they would be given back, with their "
                    "disks",
                    f"make inventories/{cluster}/cluster.yml what it was; or give them up: "
                    f"gpubed down {cluster}",
                )
            self._delete_until_gone(self._there.patience(_QUICK_S))
            self._save(request="", left_out={}, slivers=())
        elif found.has_ticket:
            self._provision()
        elif found.expires < self._until - _NEARLY and not self._extended:
            # At first, only a few hours are granted.
            if why := refusal(self._there.renew, self.urn, self._until):
                progress.emit("note", message=f"the lease is shorter than wanted: {why}")
            self._extended = True
        elif not self._started and found.is_startable:
            return self._start()
        else:
            return False
        return True

    def _tell(self, found: Description, patience: Patience) -> None:
        # Some aggregates give no sliver's client_id; those list no links.
        nodes = [s for s in found.slivers if not s.client_id or s.client_id in self.wanted.nodes]
        booting = sum(not sliver.is_final for sliver in nodes)
        said = f"{booting} of {len(nodes)} nodes are being loaded and booted"
        if said != self._told and booting:
            self._told = said
            progress.emit("note", message=f"{said}; waiting for {patience.left_s:.0f} s at most")

    def _allocate(self) -> None:
        if self._tickets == _TICKETS:
            raise Refused("the testbed loses what it has allocated", "try again later")
        self._started = self._extended = self._was_in_use = False
        self._save(request=digest(self.wanted.request))
        text = self._request(self.journal.left_out)
        try:
            self._saw(self._there.allocate(self.urn, text, self._until))
            self._tickets += 1
        except NoResources as error:
            if journal.are_reloading(self._paths, self._there.config.patience):
                why = f"{error.message}; those that were given back are loaded anew"
                raise Busy(why, error.hint) from None
            self._leave_out_one(error)

    def _request(self, left_out: Iterable[str]) -> str:
        text = rspec.without(self.wanted.request, left_out)
        if self._there.config.host_keys == "proved":
            text = rspec.with_command(text, prepare.command(self._paths))
        return text

    def _leave_out_one(self, error: NoResources) -> None:
        fixed, short = unmappable(error), _SHORT_OF.search(error.said)
        groups = list(self.wanted.groups.values())
        named = [g for g in groups if fixed in g.nodes or (short and g.type == short[1])]
        for group in named or groups:
            left = [name for name in group.nodes if name not in self.journal.left_out]
            name = fixed if fixed in left else left[-1] if left else self.wanted.head
            if len(left) > group.min and name != self.wanted.head:
                self._save(left_out={**self.journal.left_out, name: error.message})
                progress.emit("note", message=f"going on without {name}: {error.message}")
                return
        raise error

    def _add(self, missing: Mapping[str, str]) -> None:
        """Request as many missing nodes as can be had; only Emulab changes a slice in place.

        Raises what the testbed says if fewer nodes than suffice would be left.
        """
        more, why = list(missing), {**self.journal.left_out, **missing}
        while more:
            # Saved first: what a killed run requested must not count as left out.
            self._save(left_out={name: why[name] for name in why if name not in more})
            try:
                self._there.update(self.urn, self._request(self.journal.left_out))
                return
            except NoResources as error:
                fixed = unmappable(error)
                name = fixed if fixed in more else more[-1]
                more.remove(name)
                why[name] = error.message
                if not self._suffices({name for name in why if name not in more}):
                    raise
            except Answered as error:
                said = f"{', '.join(missing)} cannot join a slice that runs: {error.message}"
                fix = f"gpubed down {self.wanted.cluster}, then up, asks for all nodes anew"
                if not self._suffices(why):
                    raise Refused(said, fix) from None
                progress.emit("note", message=f"{said}; {fix}")
                more = []
        self._save(left_out=why)

    def _suffices(self, left_out: Collection[str]) -> bool:
        groups = self.wanted.groups.values()
        return all(sum(n not in left_out for n in group.nodes) >= group.min for group in groups)

    @property
    def _keys(self) -> tuple[str, ...]:
        there = self._there
        return (there.login.public_key, self.wanted.public_key, *(there.config.login_keys or ()))

    def _provision(self) -> None:
        spares = any(group.min < len(group.nodes) for group in self.wanted.groups.values())
        provision = self._there.provision
        try:
            self._saw(provision(self.urn, self._keys, self._until, best_effort=spares))
        except Answered as error:
            if error.code == _EXPIRED:
                # Emulab removes an expired ticket only later; until then it grants no other.
                raise Busy(error.message, error.hint) from None
            # The ticket may have run out since it was last seen: look, and ask for another.
            if error.code not in _REFUSED or self._tickets == _TICKETS:
                raise
            self._tickets += 1

    def _start(self) -> bool:
        try:
            self._there.act(self.urn, self.urn, "geni_start")
        except Answered as error:
            # "not stopped (yet)": an earlier call was carried out, as the next looks show.
            self._refusals += 1
            if error.code not in (*_REFUSED, None) or self._refusals == _REFUSALS:
                raise
            return False
        self._started = True
        return True

    def _delete_until_gone(self, patience: Patience) -> None:
        looks = 0
        while True:
            try:
                if self._look() is None:
                    return
                journal.gave_back(self._paths)
                if looks % _RELEASE_AGAIN == 0:
                    self._there.delete(self.urn)
                looks += 1
            except NotThere:
                return
            except Unanswered:
                if not patience.left_s:
                    raise
            if not patience.left_s:
                raise GpubedError(
                    f"the testbed has not given up slice {self.wanted.name} yet",
                    f"gpubed down {self.wanted.cluster}",
                )
            patience.wait()

    def _saw(self, found: Description) -> None:
        self._save(slivers=tuple(s.urn for s in found.slivers))

    def _save(self, **changes: object) -> None:
        self.journal = self.journal.model_copy(update=changes)
        if self._keeps:
            journal.save(self._paths, self.journal)


def refusal(call: Callable[..., None], *args: object) -> str:
    """Make an idempotent call; return the reason if it is refused, else an empty string."""
    try:
        call(*args)
    except Answered as error:
        return error.message
    return ""


def unmappable(error: NoResources) -> str:
    """Return the node whose own machine cannot be had, if the mapper names one; else ""."""
    found = _FIXED.search(error.said)
    return found[1] if found else ""

"""Makes, changes and releases a slice.

`hold` reads the slice's state and takes the next step, until all nodes are ready or failed. So it
continues after lost answers, a busy testbed and killed runs. The journal is written before and
after each call that changes the slice.
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

_TICKETS = 3  # allocations, each of which lasts ten minutes
_NEARLY = timedelta(minutes=1)
_REFUSED = (7, 11, 13)  # refused; GCF: unavailable, unsupported
_EXPIRED = 15
_QUICK_S = 300.0  # for a slice that another request replaces
_REFUSALS = 5  # attempts to start nodes
_RELEASE_AGAIN = 20  # looks until the release is requested again
_FIXED = re.compile(r"Could not map (\S+) to")  # a node with a `component_id`
_SHORT_OF = re.compile(r"(?:nodes|machines) of type (\S+)")


class Reservation:
    """A cluster's slice, found by its `urn` in the state, or else by its labels or name.

    Only one object at a time may write the journal (`keeps`).
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
        self._was_in_use: bool | None = None  # None until the first answer of the aggregate
        self._started = self._extended = False
        self._reported = ""

    @property
    def urn(self) -> str:
        """The slice's URN; its usual one while it is unknown."""
        return self.journal.slice_urn

    def hold(self) -> Description:
        """Make the slice and its nodes; return it when each node is ready or has failed.

        Nodes may still be booting after `backend.patience`. Raises NoResources if the testbed lacks
        the `min` nodes of a group.
        """
        patience, is_entered = self._there.patience(), False
        while True:
            try:
                if not is_entered:
                    self._ensure_slice()
                    is_entered = True
                found = self._look()
                if found is None:
                    self._allocate()
                elif self._is_done(found):
                    return found
                elif not self._advance(found):
                    self._report_progress(found, patience)
                    if not patience.left_s:
                        return found
                    patience.wait()
            except Unanswered as error:
                patience.back_off(error)

    @property
    def grows(self) -> bool:
        """Whether the aggregate can add nodes to a running slice."""
        return self._there.grows

    def complete(self, added: frozenset[str] = frozenset()) -> Description | None:
        """Request missing and `added` nodes, and keep the others; None if the slice is gone."""
        found = self.look()
        if found is None:
            return None
        if found.has_ticket:  # from a killed run
            if added:
                self._save(request=digest(self.wanted.request))
            found = self.hold()
        if missing := self.wanted.missing(self.judge(found), added):
            self._add(missing)
        if added:
            self._save(request=digest(self.wanted.request))
        return self.hold() if missing or not self._is_done(found) else found

    def admit(self) -> None:
        """Replace the login keys of running nodes by the present ones; only Emulab can."""
        act = self._there.act
        if why := refusal(act, self.urn, self.urn, "geni_update_users", self._keys):
            message = (
                f"backend.login_keys applies to new nodes only; running ones keep theirs: {why}"
            )
            progress.emit("note", message=message)

    def look(self) -> Description | None:
        """Return the slice at the aggregate; None if it has no slivers, or another owner."""
        found = self.find()
        owned_by = owner(found.description) if found else None
        is_other = owned_by and owned_by[1] != self.wanted.uuid
        return None if found is None or is_other else self._look()

    def find(self) -> Slice | None:
        """Return the project's slice with the URN, the labels or the name; None if it has none.

        Authorities choose URNs, and some keep no description, so a slice that is found by its name
        may be another user's.
        """
        wanted, found = self.wanted, self._there.find(self.urn)
        if found is None:
            slices, labels = self._there.of_project(), (wanted.cluster, wanted.uuid)
            labelled = [each for each in slices if owner(each.description) == labels]
            named = [each for each in slices if each.name == wanted.name]
            found = next(iter([*labelled, *named]), None)
        if found:
            self._rename(found.urn)
        return found

    @property
    def is_a_failed_start(self) -> bool:
        """Whether this run has read the slice, and its nodes were never in use."""
        return self._was_in_use is False

    def release(self, total: float | None = None) -> None:
        """Release all nodes, and wait until they are gone, by default for `backend.patience`."""
        # Without labels, only the slice of the state or the journal is the cluster's.
        own = self.urn if self._is_in_state or self.journal.request else ""
        if found := self.find():
            owned_by = owner(found.description)
            if owned_by[1] == self.wanted.uuid if owned_by else found.urn == own:
                self._delete_until_gone(self._there.patience(total))
        journal.forget(self._paths)

    def restart(self, sliver: str) -> None:
        """Reboot a node, and wait until its state is final."""
        self._there.act(self.urn, sliver, "geni_restart")
        patience = self._there.patience()
        while patience.left_s:
            patience.wait()
            found = self._look()
            state = {s.urn: s.operational for s in found.slivers}.get(sliver) if found else None
            if state in (None, *FINAL):
                return

    def judge(self, found: Description) -> dict[str, dict[str, Any]]:
        """Return the results of all nodes."""
        return self.wanted.judge(found, self.journal.left_out, self._there.login.user.name)

    def _ensure_slice(self) -> None:
        """Make the slice at its authority if it is missing; refuse that of another owner."""
        wanted = self.wanted
        while (found := self.find()) is None:
            self._save()
            with self._remains_as_busy():
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
        # Aggregates refuse slivers that would outlive their slice.
        self._until = found.expires

    def _rename(self, urn: str) -> None:
        self.journal = self.journal.model_copy(update={"slice_urn": urn})

    def _look(self) -> Description | None:
        found = self._describe()
        if found:
            self._save_slivers(found)
        if self._was_in_use is None:
            # Nodes that were requested and never logged in to are not in use.
            unknown = not self.journal.request
            self._was_in_use = found is not None and (unknown or bool(self._used_nodes(found)))
        return found

    def _used_nodes(self, found: Description) -> list[str]:
        """Return the existing nodes that a run has logged in to."""
        there = {sliver.urn for sliver in found.slivers}
        return [name for name, known in journal.nodes(self._paths) if known["id"] in there]

    def _describe(self) -> Description | None:
        with self._remains_as_busy():
            return self._there.describe(self.urn)

    @contextmanager
    def _remains_as_busy(self) -> Iterator[None]:
        """Raise Busy for refusals due to remains of an ended slice, which block its name."""
        try:
            yield
        except Answered as error:
            if not self.journal.request or not faults.is_about_remains(error.said):
                raise
            raise Busy(error.message, error.hint) from None

    def _is_done(self, found: Description) -> bool:
        return found.is_final and self._is_as_wanted()

    def _is_as_wanted(self) -> bool:
        return self.journal.request in ("", digest(self.wanted.request))

    def _advance(self, found: Description) -> bool:
        """Do the next step; False if only waiting is left."""
        if not self._is_as_wanted():
            if names := self._used_nodes(found):  # the state was lost
                cluster = self.wanted.cluster
                raise Refused(
                    f"slice {self.wanted.name} has nodes in use ({', '.join(names)}), which were "
                    "requested with another specification: a new request would delete their disks",
                    f"restore the former inventories/{cluster}/cluster.yml; or give the nodes up: "
                    f"gpubed down {cluster}",
                )
            self._delete_until_gone(self._there.patience(_QUICK_S))
            self._save(request="", left_out={}, slivers=())
        elif found.has_ticket:
            self._provision()
        elif found.expires < self._until - _NEARLY and not self._extended:
            # Aggregates grant only a few hours at first.
            if why := refusal(self._there.renew, self.urn, self._until):
                progress.emit("note", message=f"the lease is shorter than wanted: {why}")
            self._extended = True
        elif not self._started and found.is_startable:
            return self._start()
        else:
            return False
        return True

    def _report_progress(self, found: Description, patience: Patience) -> None:
        # Aggregates without client_id list no links.
        nodes = [s for s in found.slivers if not s.client_id or s.client_id in self.wanted.nodes]
        booting = sum(not sliver.is_final for sliver in nodes)
        state = f"{booting} of {len(nodes)} nodes are being loaded and booted"
        if state != self._reported and booting:
            self._reported = state
            progress.emit("note", message=f"{state}; waiting for {patience.left_s:.0f} s at most")

    def _allocate(self) -> None:
        if self._tickets == _TICKETS:
            raise Refused(f"the testbed lost {_TICKETS} allocations", "try again later")
        self._started = self._extended = self._was_in_use = False
        self._save(request=digest(self.wanted.request))
        text = self._request(self.journal.left_out)
        try:
            self._save_slivers(self._there.allocate(self.urn, text, self._until))
            self._tickets += 1
        except NoResources as error:
            if journal.are_reloading(self._paths, self._there.config.patience):
                why = f"{error.message}; machines that were just released are reloaded"
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
        """Request as many missing nodes as the testbed has; only Emulab can change a slice.

        Raises the testbed's refusal if fewer than a group's `min` nodes would be left.
        """
        more, why = list(missing), {**self.journal.left_out, **missing}
        while more:
            # Saved first: nodes that a killed run requested must not count as left out.
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
                message = f"{', '.join(missing)} cannot join a slice that runs: {error.message}"
                fix = f"gpubed down {self.wanted.cluster}, then up, asks for all nodes anew"
                if not self._suffices(why):
                    raise Refused(message, fix) from None
                progress.emit("note", message=f"{message}; {fix}")
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
            self._save_slivers(provision(self.urn, self._keys, self._until, best_effort=spares))
        except Answered as error:
            if error.code == _EXPIRED:
                # Emulab grants no other ticket until it has removed the expired one.
                raise Busy(error.message, error.hint) from None
            # The ticket may have expired: look again, and allocate another.
            if error.code not in _REFUSED or self._tickets == _TICKETS:
                raise
            self._tickets += 1

    def _start(self) -> bool:
        try:
            self._there.act(self.urn, self.urn, "geni_start")
        except Answered as error:
            # "not stopped (yet)": an earlier call started them.
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
                    f"the testbed has not released slice {self.wanted.name} yet",
                    f"gpubed down {self.wanted.cluster}",
                )
            patience.wait()

    def _save_slivers(self, found: Description) -> None:
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
    """Return the node whose own machine is unavailable, if the mapper names one; else ""."""
    found = _FIXED.search(error.said)
    return found[1] if found else ""

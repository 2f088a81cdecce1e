"""A slice's life at the testbed: from nothing to nodes that are ready, and back.

`hold` looks what there is and does the next thing, until there is nothing left to do.
So a lost answer, a busy testbed and a run that was killed anywhere all come to the same:
look again, and go on from there. Each call that changes something is written down
before and after it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from gpubed.backends.virtualwall import (
    acquaintance,
    faults,
    journal,
    manifest,
    ownership,
    proof,
    reloading,
    rspec,
    verdict,
)
from gpubed.backends.virtualwall.aggregate import FINAL, Description
from gpubed.backends.virtualwall.authority import Credential, Slice
from gpubed.backends.virtualwall.connection import Connection
from gpubed.backends.virtualwall.faults import Answered, Busy, NoResources, NotThere, Unanswered
from gpubed.backends.virtualwall.journal import Journal, Way
from gpubed.backends.virtualwall.patience import Patience
from gpubed.backends.virtualwall.slice_inputs import SliceInputs, owner
from gpubed.backends.virtualwall.verdict import Results
from gpubed.core import progress
from gpubed.core.errors import GpubedError, Refused
from gpubed.core.paths import ClusterPaths

_TICKETS = 3  # an allocation lasts ten minutes; losing it twice is not for lack of time
_NEARLY = timedelta(minutes=1)
_REFUSED = (7, 11, 13)  # refused; GCF says: unavailable, unsupported
_EXPIRED = 15
_REFUSALS = 5  # of a start, until they are believed
_RELEASE_AGAIN = 20  # looks after which an unfinished release is asked for once more
_FIXED = re.compile(r"Could not map (\S+) to")  # of a node that names its machine
_SHORT_OF = re.compile(r"(?:nodes|machines) of type (\S+)")


class Reservation:
    """One cluster's slice.

    Args:
        wanted: What it shall be.
        connection: To the testbed.
        paths: Where its journal is.
        keeps: Whether what is seen is written down; only one at a time may.
        urn: The slice's, where it is known; else it is looked for.

    Attributes:
        was_in_use: Whether what it holds was found in use, or ready for it, at the first look.
        is_ours: Whether this run got into the slice: only then may it give it back.
    """

    def __init__(
        self,
        wanted: SliceInputs,
        connection: Connection,
        paths: ClusterPaths,
        *,
        keeps: bool = True,
        urn: str = "",
    ) -> None:
        self.wanted, self._there, self._paths, self._keeps = wanted, connection, paths, keeps
        known = journal.load(paths)
        self._is_in_state = bool(urn)
        self.urn = urn or ownership.known_urn(connection, known, wanted)
        self.was_in_use = self.is_ours = False
        self._credentials: list[Credential] = []
        self._until = datetime.now(UTC) + timedelta(seconds=wanted.duration)
        self._tickets = self._refusals = 0
        self._started = self._extended = self._looked = False
        self._told = ""
        way = Way.of(wanted.testbed)
        if known is None or known.slice_urn != self.urn or known.uuid != wanted.uuid:
            known = Journal(uuid=wanted.uuid, slice_urn=self.urn, testbed=way)
        self.journal = known.model_copy(update={"testbed": way})

    def hold(self) -> Description:
        """Bring the slice to where each of its nodes is ready or has failed.

        Returns:
            What it is then; nodes may still be booting when patience ends.

        Raises:
            NoResources: The testbed does not have what is wanted, nor the least that will do.
            Refused: The testbed said no.
            Unanswered: It did not answer for as long as patience lasts.
        """
        patience = Patience.of(self._there.config)
        self._enter(patience)
        last: Description | None = None
        while True:
            try:
                last = self._look()
                if self._is_done(last):
                    return _there(last)
                if not self._advance(last):
                    self._tell(last, patience)
                    if patience.is_over:
                        return _there(last)
                    patience.look()
            except (Busy, Unanswered) as error:
                if patience.is_over:
                    raise
                patience.back_off(error)

    def look(self) -> Description | None:
        """Return what the testbed has of the slice; None when there is nothing."""
        patience = self._quick()
        found = patience.insist(self._find)
        if found is None or found.is_over or ownership.is_anothers(found, self.wanted.uuid):
            return None
        self._renew_credentials(patience)
        return patience.insist(self._look)

    @property
    def is_a_failed_start(self) -> bool:
        """Whether what the slice holds never was in use, as far as this run has seen.

        Of a slice that nobody could look at, nothing is known.
        """
        return self.is_ours and self._looked and not self.was_in_use

    def release(self, total: float | None = None) -> None:
        """Give everything back, and wait until it is gone.

        Args:
            total: Seconds to try; else as long as patience lasts.

        Raises:
            GpubedError: It is still there.
        """
        patience = Patience.of(self._there.config, total)
        known = self.urn if self._is_in_state or self.journal.request else ""
        found = patience.insist(self._find)
        # A name that somebody else has now is ours no more: what we had is over.
        over = not found or found.is_over or ownership.is_taken(self._there, found, self.journal)
        if found and not over and ownership.is_ours(found, self.wanted.uuid, known):
            self._renew_credentials(patience)
            self._delete_until_gone(patience)
        journal.forget(self._paths)

    def restart(self, sliver: str) -> None:
        """Boot a node that failed or hangs once more, and wait for what comes of it."""
        patience = self._quick()
        self._renew_credentials(patience)
        restart = self._there.aggregate.act
        patience.insist(lambda: restart([sliver], self._credentials, "geni_restart"))
        patience = Patience.of(self._there.config)
        while not patience.is_over:
            patience.look()
            found = patience.insist(self._look)
            state = {s.urn: s.operational for s in found.slivers}.get(sliver) if found else None
            if state in (None, *FINAL):
                return

    def judge(self, found: Description) -> Results:
        """Return what became of each node; see `verdict`."""
        user, left_out = self._there.login.user.name, self.journal.left_out
        asked = rspec.without(self.wanted.request, left_out) if self.wanted.request else ""
        linked = rspec.linked(asked) if asked else frozenset[str]()
        return verdict.judge(found, self.wanted.nodes, left_out, user, linked)

    # The slice itself.

    def _enter(self, patience: Patience) -> None:
        """Be in a slice that is ours and lasts long enough."""
        is_new = False
        while (found := patience.insist(self._find)) is None or found.is_over:
            try:
                with self._outlasting(), self._calling("create slice"):
                    self._make()
                is_new = True
            except (Busy, Unanswered) as error:
                if patience.is_over:
                    raise
                patience.back_off(error)
        ownership.require_ours(found, self.wanted)
        self._renew_credentials(patience)
        self._require_known_nodes(found, patience)
        self.is_ours = True
        if found.expires < self._until - _NEARLY:
            found = self._lengthened(found, patience)
        # Slivers cannot outlive their slice: asking for more is refused, not cut. A slice that was
        # there may have been renewed: nodes that are added last as long as the others.
        self._until = min(self._until, found.expires) if is_new else found.expires

    def _find(self) -> Slice | None:
        found = ownership.find(self._there, self.urn, self.wanted)
        if found:
            self._rename(found.urn)
        return found

    def _make(self) -> None:
        wanted = self.wanted
        self._rename(
            self._there.authority.create(
                wanted.name, self._there.project, self._until, wanted.description
            )
        )

    def _rename(self, urn: str) -> None:
        """Believe the authority: it alone knows how it names slices."""
        self.urn = urn
        self.journal = self.journal.model_copy(update={"slice_urn": urn})

    def _require_known_nodes(self, found: Slice, patience: Patience) -> None:
        """Refuse a slice that says nothing of its owner and holds nodes that we never asked for."""
        if owner(found.description) or self.journal.request:
            return
        if patience.insist(self._describe):
            raise Refused(
                f"slice {self.wanted.name} holds nodes, and nothing says whose they are",
                "give them back with the tool that made them, or use another cluster name",
            )

    def _lengthened(self, found: Slice, patience: Patience) -> Slice:
        """Ask for a slice as long as the lease, and return what it is then."""
        try:
            patience.insist(lambda: self._there.authority.renew(self.urn, self._until))
        except Busy:
            raise
        except Answered as error:
            progress.emit("note", message=f"the slice keeps its end: {error.message}")
        self._renew_credentials(patience)
        return patience.insist(self._find) or found

    def _renew_credentials(self, patience: Patience) -> None:
        authority = self._there.authority
        self._credentials = patience.insist(lambda: authority.slice_credentials(self.urn))

    # One step.

    def _look(self) -> Description | None:
        found = self._describe()
        if found:
            self._save(slivers=journal.recorded(found.slivers), granted_until=found.expires)
        if not self._looked:
            self._looked = True
            self.was_in_use = found is not None and self._is_in_use(found)
        return found

    def _is_in_use(self, found: Description) -> bool:
        """Say whether a cluster works with the nodes, or can: one that was killed may not have.

        One of them may have failed or be booting again: the others are in use all the same.
        """
        are_ready = all(s.is_final and s.operational == "geni_ready" for s in found.slivers)
        # What our own run asked for and never met is in use by nobody.
        return are_ready or not self.journal.request or bool(self._met(found))

    def _met(self, found: Description) -> list[str]:
        """Return the names of the nodes that a run got into; some known ones may be long gone."""
        there = {sliver.urn for sliver in found.slivers}
        return [name for name, known in acquaintance.everyone(self._paths) if known["id"] in there]

    def _describe(self) -> Description | None:
        with self._outlasting():
            return self._there.aggregate.describe(self.urn, self._credentials)

    @contextmanager
    def _outlasting(self) -> Iterator[None]:
        """Wait for what is left of a slice of ours that has ended: its name is taken until then."""
        try:
            yield
        except Answered as error:
            if not self.journal.request or not faults.is_about_remains(error.said):
                raise
            raise Busy(error.message, error.hint, error.code) from None

    def _is_done(self, found: Description | None) -> bool:
        return (
            found is not None
            and self._is_ours(found)
            and all(sliver.is_final for sliver in found.slivers)
        )

    def _is_ours(self, found: Description) -> bool:
        """Say whether slivers were asked for with our request: another run may have had another."""
        if self.journal.request:
            return self.journal.request == self.wanted.digest
        granted, reasons = manifest.read(found.manifest, self.wanted.nodes, "")
        return not any("does not list" in reason for reason in reasons.values()) or bool(granted)

    def _advance(self, found: Description | None) -> bool:
        """Do the next thing; False when only waiting is left."""
        if found is None:
            self._allocate()
        elif not self._is_ours(found):
            self._require_unused(found)
            self._delete_until_gone(self._quick())
            self._save(request="", left_out={}, slivers=())
        elif found.has_ticket:
            self._provision()
        elif found.expires < self._until - _NEARLY and not self._extended:
            self._extend()
        elif not self._started and found.is_startable:
            return self._start()
        else:
            return False
        return True

    def _tell(self, found: Description | None, patience: Patience) -> None:
        """Say for how many nodes is waited, whenever that changes: machines boot for minutes."""
        slivers = found.slivers if found else ()
        # Some aggregates say of no sliver which part of the request it is; those list no links.
        nodes = [s for s in slivers if not s.client_id or s.client_id in self.wanted.nodes]
        booting = sum(not sliver.is_final for sliver in nodes)
        said = f"{booting} of {len(nodes)} nodes are being loaded and booted"
        if said != self._told and booting:
            self._told = said
            left = max(0.0, patience.deadline - time.monotonic())
            progress.emit("note", message=f"{said}; waiting for {left:.0f} s at most")

    def _require_unused(self, found: Description) -> None:
        """Refuse to give back, for another request, nodes that a cluster has worked with.

        Where they are replaced in order, each is forgotten before; here the state was lost.
        """
        if names := self._met(found):
            cluster = self.wanted.cluster
            raise Refused(
                f"slice {self.wanted.name} holds {', '.join(names)}, in use, and was asked for "
                "with another specification than now: they would be given back, with their disks",
                f"make inventories/{cluster}/cluster.yml what it was; or give them up: "
                f"gpubed down {cluster}",
            )

    def _allocate(self) -> None:
        if self._tickets == _TICKETS:
            raise Refused("the testbed loses what it has allocated", "try again later")
        self._tickets += 1
        self._started = self._extended = self.was_in_use = False
        self._save(request=self.wanted.digest)
        text = self._request(self.journal.left_out)
        try:
            with self._calling("Allocate"):
                found = self._there.aggregate.allocate(
                    self.urn, self._credentials, text, self._until
                )
        except NoResources as error:
            self._save(calling=None)
            self._tickets -= 1
            if reloading.goes_on(self._paths, self._there.config.patience):
                why = f"{error.message}; those that were given back are loaded anew"
                raise Busy(why, error.hint, error.code) from None
            self._leave_out_one(error)
            return
        self._save(slivers=journal.recorded(found.slivers))

    def _request(self, left_out: Iterable[str]) -> str:
        text = rspec.without(self.wanted.request, left_out)
        if self._there.config.host_keys == "proved":
            text = rspec.with_command(text, proof.command(self._paths))
        return text

    def _leave_out_one(self, error: NoResources) -> None:
        """Ask for one node less, where fewer will do; the testbed says which, or of which kind."""
        fixed, short = unmappable(error), _SHORT_OF.search(error.said)
        groups = list(self.wanted.groups.values())
        named = [g for g in groups if fixed in g.nodes or (short and g.type == short[1])]
        for group in named or groups:
            left = [name for name in group.nodes if name not in self.journal.left_out]
            if len(left) <= group.min:
                continue
            name = fixed if fixed in left else left[-1]
            if name != self.wanted.head:
                self._save(left_out={**self.journal.left_out, name: error.message})
                progress.emit("note", message=f"going on without {name}: {error.message}")
                return
        raise error

    def _provision(self) -> None:
        login = self._there.login
        try:
            with self._calling("Provision"):
                found = self._there.aggregate.provision(
                    self.urn,
                    self._credentials,
                    str(login.user),
                    [login.public_key, self.wanted.public_key],
                    self._until,
                    best_effort=self.wanted.has_spares,
                )
        except Answered as error:
            if error.code == _EXPIRED:
                # Emulab takes back some time later what ran out; until then there is no other.
                raise Busy(error.message, error.hint, error.code) from None
            # The ticket may have run out since it was last seen: look, and ask for another.
            if error.code not in _REFUSED or self._tickets == _TICKETS:
                raise
            self._tickets += 1
            return
        self._save(slivers=journal.recorded(found.slivers))

    def _extend(self) -> None:
        """Ask for the whole lease: what is granted at first is a few hours."""
        self._extended = True
        try:
            with self._calling("Renew"):
                self._there.aggregate.renew(self.urn, self._credentials, self._until)
        except (Busy, Unanswered):
            self._extended = False
            raise
        except Answered as error:
            self._save(calling=None)
            progress.emit("note", message=f"the lease is shorter than wanted: {error.message}")

    def _start(self) -> bool:
        try:
            with self._calling("PerformOperationalAction geni_start"):
                self._there.aggregate.act([self.urn], self._credentials, "geni_start")
        except Busy:
            raise
        except Answered as error:
            # "not stopped (yet)": an earlier call was carried out, and the next looks show it.
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
                reloading.begin(self._paths)
                if looks % _RELEASE_AGAIN == 0:
                    with self._calling("Delete"):
                        self._there.aggregate.delete(self.urn, self._credentials)
                looks += 1
            except NotThere:
                return
            except (Busy, Unanswered):
                if patience.is_over:
                    raise
            if patience.is_over:
                raise GpubedError(
                    f"the testbed has not given up slice {self.wanted.name} yet",
                    f"gpubed down {self.wanted.cluster}",
                )
            patience.look()

    # The record.

    def _save(self, **changes: object) -> None:
        self.journal = self.journal.model_copy(update=changes)
        if self._keeps:
            journal.save(self._paths, self.journal)

    @contextmanager
    def _calling(self, method: str) -> Iterator[None]:
        self._save(calling=method)
        yield
        self._save(calling=None)

    def _quick(self) -> Patience:
        return Patience.of(self._there.config, min(300.0, self._there.config.patience))


def unmappable(error: NoResources) -> str:
    """Return the node whose own machine cannot be had, where the mapper names one; else none."""
    found = _FIXED.search(error.said)
    return found[1] if found else ""


def _there(found: Description | None) -> Description:
    if found is None:
        raise GpubedError(
            "the testbed has lost the slice while its nodes booted", "gpubed up CLUSTER"
        )
    return found

"""`gpubed watch`: probes a cluster repeatedly; repairs it, renews its lease, releases it.

A watch repairs only faults that `up` repairs without a question, and only faults that two looks in
a row find: a booting node is as silent as a broken one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from traceback import format_exception
from typing import Literal, NamedTuple

from gpubed.cluster import idle, lease_policy, probe, removals, up
from gpubed.cluster import lease as leases
from gpubed.cluster.events import event_file
from gpubed.cluster.probe import Condition
from gpubed.cluster.watch_memory import DAY, Event, Journal, backed_off, in_words, stamp
from gpubed.configuration import due, unfinished
from gpubed.core import record, runlock, secret
from gpubed.core.errors import GpubedError, Locked, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.core.units import Moment
from gpubed.engines.stack import EngineName
from gpubed.jobs.runs import active
from gpubed.nodes import allocation as allocations
from gpubed.nodes.allocation import Cluster
from gpubed.testbeds import registry
from gpubed.testbeds.base import Testbed
from gpubed.testbeds.specification import load, load_current

State = Literal["well", "amiss", "busy", "gone"]
"""The result of a look. Busy: another run changes the cluster. Gone: the cluster is down."""
# Faults that may lie between this machine and the node; the node itself may be intact.
_OWN_VIEW = {probe.UNREACHABLE, "cut", "unshaped", probe.UNRECOGNIZED}


class Fault(NamedTuple):
    """A fault that `up` would repair; `state` is empty if it is not about a node."""

    key: str
    node: str
    why: str
    state: str = ""

    @property
    def boots(self) -> bool:
        """Whether the node may be booting."""
        return self.state == probe.UNREACHABLE


class Watch:
    """The watch of one cluster.

    Args:
        repairs: The largest number of repairs within 24 hours.
        hear: Called with each event after it was logged.
        following: Shows the progress of a repair, given its event file.
    """

    def __init__(
        self,
        paths: ClusterPaths,
        engine: EngineName,
        repairs: int,
        hear: Callable[[Event], None],
        following: Callable[[Path], AbstractContextManager[None]],
    ) -> None:
        self._paths, self._engine, self._following = paths, engine, following
        self._limit = repairs
        self.journal = Journal(paths, hear)
        self._had_lock = False  # whether this process held the lock of the cluster's only watch
        self._failed_looks, self._last_error = 0, ""  # failed looks in a row

    def start(self, every_s: float) -> None:
        """Begin to look repeatedly; forget the faults that other processes saw before."""
        self._had_lock = self._has_lock
        self.journal.remember(amiss={})
        why = f"a look every {every_s:g} s, at most {self._limit} repairs in 24 h"
        self.journal.tell("started", why)

    @property
    def is_over(self) -> bool:
        """Whether the cluster is gone, and no run is creating or removing it."""
        return self.journal.is_gone and runlock.holder(self._paths.state) is None

    @property
    def _has_lock(self) -> bool:
        return runlock.has_open(os.getpid(), self._paths.watching)

    def try_look(self) -> tuple[str, float]:
        """Look once; return the result, and the seconds to wait after a look that failed.

        Raises `UsageError` if the specification is wrong, and `BrokenPipeError` if the reader of
        the output is gone.
        """
        try:
            state = self.look()
            if self._failed_looks:
                self._failed_looks, self._last_error = 0, ""
                self.journal.tell("well", f"{self._paths.name} can be looked at again")
        except (UsageError, BrokenPipeError):
            raise
        except Exception as error:
            why = f"a look failed: {in_words(error)}"
            details = "" if isinstance(error, GpubedError) else "".join(format_exception(error))
        else:
            return state, 0.0
        self._failed_looks += 1
        try:
            self.journal.remember(amiss={})  # the next look must not count as the second in a row
            if why != self._last_error:
                self._last_error = why
                again = "looked at again in a minute, then less and less often"
                self.journal.tell("failed", why, again, details=details)
        except BrokenPipeError:
            raise
        except OSError:
            pass  # a full disk may have caused the failure, too
        return "not looked at", backed_off(self._failed_looks)

    def look(self) -> State:
        """Look once, and do what is due."""
        paths, name, journal = self._paths, self._paths.name, self.journal
        # `down` removes the lock, and a new cluster may have the same name.
        if self.is_over or (self._had_lock and not self._has_lock):
            why = f"{name} is not up" if self.is_over else f"{name} was taken down meanwhile"
            journal.tell("gone", why, f"the watch is over; to make the cluster: gpubed up {name}")
            return "gone"
        plausible = journal.memory.until(leases.now())
        if plausible != journal.memory:
            journal.remember(**dict(plausible))
            why = f"{paths.watch} has times in the future, of a clock that was ahead"
            journal.tell("clock", why, "they are dropped, and delay no repair")
        holder = runlock.holder(paths.state)
        if holder and journal.is_going:
            return self._pass()
        warned = journal.memory.warned if journal.releases else None
        try:
            cluster = load_current(paths, granted=warned.granted if warned else None)
        except GpubedError as error:
            error = _begun_down(paths) or error
            journal.leave(error.message, error.hint)
            return "amiss"
        messages = lease_policy.look(cluster).messages
        for each in messages:
            journal.tell_once(each.matter, each.event, each.why, each.outcome)
        if not any(each.matter == "nodes" for each in messages):
            journal.settle("nodes", "all nodes know the end of the lease")
        if holder:
            return self._pass()
        if idle.go_on(journal, self._engine, cluster):
            return "gone" if self.is_over else "amiss"
        return self._look(cluster)

    def _pass(self) -> State:
        """Forget the faults seen so far, because another run is at work."""
        self.journal.remember(amiss={})
        return "busy"

    def _look(self, cluster: Cluster) -> State:
        journal, lender = self.journal, cluster.allocation.backend
        testbed = registry.bound(lender, self._paths)
        try:
            found = probe.look(testbed, cluster)
        except GpubedError as error:
            journal.remember(amiss={})
            why = f"{lender} cannot be asked: {error.message}"
            journal.tell_once("testbed", "unasked", why, error.hint or "")
            return "amiss"
        if runlock.holder(self._paths.state):
            return self._pass()  # a run that began meanwhile may have caused the faults
        journal.settle("testbed", f"{lender} answers again")
        self._report_unrepairable(found)
        if found.all_silent:
            journal.remember(amiss={})
            return "amiss"
        faults, now, before = self._faults(found, cluster), leases.now(), journal.memory.amiss
        # A damaged node stays in quarantine, although it may not say so any more.
        held = {n: why for n, why in journal.memory.quarantined.items() if n in found.damaged}
        quarantines = {node.node: node.quarantine for node in found.unwell}
        held |= {name: q.reason for name, q in quarantines.items() if q and q.is_by_hand}
        since = {fault.key: before.get(fault.key, now) for fault in faults}
        journal.remember(amiss=since, quarantined=held)
        if idle.care(journal, self._engine, cluster):
            return "gone" if self.is_over else "amiss"
        spared = self._report_spared([fault for fault in faults if fault.node in held])
        broken = [fault for fault in faults if fault.node not in held]
        if not broken:
            if found.unknown:
                return "amiss"
            self._forget_failures()
            journal.settle("cluster", f"nothing of {self._paths.name} is left to repair")
            return "amiss" if spared or found.full else "well"
        if all(_is_lasting(fault, before, testbed) for fault in broken):
            return "well" if self._repair(cluster, found, broken, spared) else "amiss"
        if not journal.memory.failures:
            again = "looked at again before it is repaired"
            journal.tell_once("cluster", "amiss", _why(broken), again, _nodes(broken))
        return "amiss"

    def _faults(self, found: Condition, cluster: Cluster) -> list[Fault]:
        faults = [
            Fault(name, name, f"{name} is {state}", state)
            for name, state in found.damaged.items()
            if name not in found.unknown
        ]
        faults += [Fault(f"{unit.unit} {unit.node}", unit.node, unit.why) for unit in found.stopped]
        head = cluster.allocation.head.name if cluster.allocation.nodes else ""
        faults += [Fault(f"service {name}", head, why) for name, why in found.broken.items()]
        if found.reshaped:
            faults.append(Fault("links", "", probe.RESHAPED))
        begun = self.journal.memory.unfinished
        if begun and unfinished.state(cluster.paths) == unfinished.INTERRUPTED:
            faults.append(Fault("configuration", "", "the last repair did not finish"))
        return faults

    def _report_unrepairable(self, found: Condition) -> None:
        report, name = self.journal.report, self._paths.name
        full = "; ".join(f"{node}: {why}" for node, why in found.full.items())
        first = probe.free(name, next(iter(found.full))) if full else ""
        report("disks", "person", full, first, "disks have space again")
        unknown, outcome = "; ".join(found.unknown.values()), ""
        if found.all_silent:
            unknown = f"no node of {name} answers"
            outcome = f"{probe.NO_WAY}; where they hang: gpubed up {name}"
        report("unknown", "unasked", unknown, outcome, "the condition of all nodes is known again")

    def _report_spared(self, faults: Sequence[Fault]) -> str:
        held, name = self.journal.memory.quarantined, self._paths.name
        spared = "; ".join(f"{fault.why}, in quarantine ({held[fault.node]})" for fault in faults)
        outcome = (
            f"left alone; to repair it: gpubed up {name}; "
            f"to use a node that answers: gpubed health {name} --requalify NODE"
        )
        self.journal.report("quarantine", "left", spared, outcome)
        return spared

    def _forget_failures(self) -> None:
        self.journal.remember(failures=0, failed="", wait_until=None, unfinished=False, left="")

    def _repair(
        self, cluster: Cluster, found: Condition, broken: Sequence[Fault], spared: str
    ) -> bool:
        journal, why, name = self.journal, _why(broken), self._paths.name
        try:
            self._require_ours(cluster)
            probe.require_known_keys(cluster, found)
            if spared:
                beside = f"to repair it would touch what is left alone, too: {spared}"
                raise GpubedError(beside, f"gpubed up {name}")
        except GpubedError as error:
            journal.leave(f"{why}: {error.message}", error.hint)
            return False
        if journal.memory.left == why or journal.waits:
            return False
        now = leases.now()
        recent = journal.memory.recent(now)
        if len(recent) >= self._limit:
            until = f" until {stamp(recent[-self._limit] + DAY)}" if self._limit else ""
            spent = f"{self._limit} repairs in 24 h are spent: it only watches{until}"
            journal.tell_once("cluster", "spent", why, f"{spent}; to repair it: gpubed up {name}")
            return False
        before, began, refused = journal.memory, time.monotonic(), list[str]()
        undo = {"repairs": before.repairs, "unfinished": before.unfinished}
        # Written first, because the repair counts even if the watch is killed.
        journal.remember(repairs=(*recent, now), unfinished=True)
        try:
            done = self._up(cluster, broken, refused)
        except Locked as error:
            journal.remember(**undo)
            journal.tell_once("cluster", "waits", why, error.message)
            return False
        except GpubedError as error:
            if refused:  # nothing was changed, and a person has to decide
                journal.remember(**undo, left=why)
                journal.leave(f"{why}; {error.message}", error.hint)
                return False
            failure = f"{why}: {error.message}"
            if failure == before.failed and not isinstance(error, probe.StaysSilent):
                # The same failure as before changed nothing, so it does not count.
                journal.remember(repairs=before.repairs)
            journal.remember(failed=failure)
            journal.tell("repair", why, journal.failed(error), _nodes(broken))
            return False
        journal.remember(amiss={})
        self._forget_failures()
        journal.settle("cluster")
        outcome = f"repaired in {time.monotonic() - began:.0f} s"
        if done.restarted:
            outcome += f"; restarted, since silent: {', '.join(done.restarted)}"
        journal.tell("repair", why, outcome, _nodes(broken))
        return True

    def _require_ours(self, cluster: Cluster) -> None:
        """Raise an error if a person has to decide, or `up` would do more than repair."""
        paths, name = cluster.paths, cluster.name
        if begun := _begun_down(paths):
            raise begun
        paths.refuse_users_program()
        if not paths.has_stack:
            raise GpubedError(f"the state of {name} is lost", f"gpubed audit {name}")
        leases.check_not_expired(paths)
        secret.require_key(paths)
        if load(paths.spec) != registry.reach(cluster.allocation.backend, paths).applied():
            why = f"{paths.spec} was changed since it was applied"
            raise GpubedError(why, f"gpubed plan {name} says more")
        is_bare = not cluster.plan.spec.configure or not cluster.allocation.nodes
        if not (is_bare or self.journal.memory.unfinished) and (roles := due.now(cluster)):
            why = f"changed roles were not applied yet: {', '.join(roles)}"
            raise GpubedError(why, f"gpubed up {name}")

    def _up(self, cluster: Cluster, broken: Sequence[Fault], refused: list[str]) -> up.Done:
        """Run `up`; refuse losses beyond the broken nodes, and add them to `refused`."""
        paths = self._paths
        lost = {fault.node for fault in broken if fault.state and fault.state not in _OWN_VIEW}

        def approve(lines: Sequence[str]) -> None:
            if beyond := removals.beyond(lines, lost):
                refused.extend(beyond)
                why = f"the repair would lose more than what is broken: {'; '.join(beyond)}"
                raise UsageError(why, f"gpubed up {paths.name}")

        def still_wanted() -> None:
            present = paths.allocation.exists() and allocations.load(paths.allocation)
            if present != cluster.allocation:
                raise Locked(f"another run has changed {paths.name} meanwhile")
            self._require_ours(cluster)

        booting = {fault.node for fault in broken if fault.boots}
        with ExitStack() as held:
            if not active.outlive_nodes(paths):
                # New jobs would share processors with the repair, and fail on broken nodes.
                held.enter_context(runlock.measuring(paths.state, "watch"))
            path = held.enter_context(event_file(paths, "watch", None))
            held.enter_context(self._following(path))
            return up.up(
                paths, self._engine, approve=approve, still_wanted=still_wanted, overdue=booting
            )


def _is_lasting(fault: Fault, before: dict[str, Moment], testbed: Testbed) -> bool:
    """Return whether the last look found the fault, too, and a silent node had time to boot."""
    patience = testbed.backend.boots_within_s if fault.boots else 0.0
    since = before.get(fault.key)
    return since is not None and (leases.now() - since).total_seconds() >= patience


def _nodes(faults: Sequence[Fault]) -> list[str]:
    return sorted({fault.node for fault in faults if fault.node})


def _why(faults: Sequence[Fault]) -> str:
    return "; ".join(fault.why for fault in faults)


def _begun_down(paths: ClusterPaths) -> GpubedError | None:
    if record.read(paths).removing is None:
        return None
    return GpubedError(
        f"a `down` of {paths.name} was begun and did not finish",
        f"gpubed down {paths.name}; to have it back: gpubed up {paths.name}",
    )

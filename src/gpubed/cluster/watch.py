"""`gpubed watch`: looks at a cluster again and again, repairs what is broken, keeps its lease.

It repairs as `up` does, and only what `up` does unasked: whatever costs more than what is broken
is left to a person, and so is a specification that nobody has applied yet. One look is no reason
to act: a node that boots is as silent as one that is broken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from traceback import format_exception
from typing import Any, Literal

from gpubed.cluster import (
    condition,
    costs,
    current,
    hung,
    idle,
    lost_state,
    renewal,
    up,
    watch_log,
    watch_memory,
)
from gpubed.cluster import lease as leases
from gpubed.cluster.condition import Condition
from gpubed.cluster.events import event_file
from gpubed.cluster.idle import Warned
from gpubed.cluster.watch_log import Event, stamp
from gpubed.cluster.watch_memory import DAY
from gpubed.configuration import due, unfinished
from gpubed.core import runlock, secret
from gpubed.core.errors import GpubedError, Locked, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.engines.stack import EngineName
from gpubed.jobs.runs import at_work
from gpubed.nodes import allocation as allocations
from gpubed.nodes.allocation import Allocation
from gpubed.nodes.cluster import Cluster
from gpubed.testbeds import registry
from gpubed.testbeds.specification import load

State = Literal["well", "amiss", "busy", "gone"]
"""What a look leads to; busy is a cluster that another run changes, gone one that is down."""

_MAY_REMOVE = {"down", ""}  # a full disk leaves a lock without a verb
_FIRST_WAIT_S, _LONGEST_WAIT_S = 60.0, 1800.0
# What we see ourselves, and may be wrong about: such a node may be whole, with all that is on it.
_OWN_VIEW = {condition.UNREACHABLE, "cut", "unshaped", condition.UNRECOGNIZED}


@dataclass(frozen=True)
class _Fault:
    """Something that is not as it should be; `state` is empty where it is no node."""

    key: str
    node: str
    why: str
    state: str = ""

    @property
    def boots(self) -> bool:
        """Whether it may be a node that boots."""
        return self.state == condition.UNREACHABLE


class Watch:
    """The watch of one cluster.

    Args:
        paths: Its paths.
        engine: What repairs run with.
        repairs: How many of them may begin within 24 hours.
        hear: Hears of events; they are in the log by then.
        following: Shows a repair's progress, given the file that it appends to.
    """

    def __init__(
        self,
        paths: ClusterPaths,
        engine: EngineName,
        repairs: int,
        hear: Callable[[Event], None],
        following: Callable[[Path], AbstractContextManager[None]],
    ) -> None:
        self._paths, self._engine, self._most = paths, engine, repairs
        self._hear, self._following = hear, following
        self.memory = watch_memory.load(paths)
        self._broken, self._said = 0, ""  # looks that broke off one after another, and the last why

    def start(self, every_s: float) -> None:
        """Begin to look again and again: what another process saw is no look of this one."""
        self._remember(amiss={})
        self.tell("started", f"a look every {every_s:g} s, at most {self._most} repairs in 24 h")

    @property
    def is_over(self) -> bool:
        """Whether there is no cluster, and no run that makes one or is about to remove it."""
        return _is_gone(self._paths) and runlock.holder(self._paths.state) is None

    def look(self) -> State:
        """Look once, and do what is due.

        Raises:
            OSError: The log, or what is remembered, cannot be written.
        """
        if self.is_over:
            name = self._paths.name
            self.tell("gone", f"{name} is not up", f"the watch is over; gpubed up {name} makes it")
            return "gone"
        who = runlock.holder(self._paths.state)
        if who and self._is_going:
            return self._pass()
        try:
            cluster = current.load(self._paths)
        except GpubedError as error:
            return self._leave(error.message, error.hint)
        self._keep_lease(cluster)
        return self._pass() if who else self._look(cluster)

    @property
    def _is_going(self) -> bool:
        """Whether the cluster's folder is gone, or about to be: nothing is written into it."""
        who = runlock.holder(self._paths.state)
        return _is_gone(self._paths) or (who is not None and who.verb in _MAY_REMOVE)

    def _pass(self) -> State:
        """Look at nothing while another run is at work, and forget what was amiss before it."""
        self._remember(amiss={})
        return "busy"

    def tell(self, event: str, why: str, outcome: str = "", nodes: Sequence[str] = ()) -> None:
        """Write an event to the log, and let it be heard."""
        told = Event(leases.now(), event, why, outcome, tuple(nodes))
        if not self._is_going:
            watch_log.append(self._paths, told)
        self._hear(told)

    def survive(self, error: Exception) -> float:
        """Tell of a look that broke off; return for how many seconds to leave the cluster alone.

        What was amiss before it has not been seen twice in a row. The log has the traceback of
        what nobody expected.

        Raises:
            UsageError: The command line or the specification is wrong, which no time heals.
            BrokenPipeError: Nobody listens any more.
        """
        if isinstance(error, UsageError | BrokenPipeError):
            raise error
        self._broken += 1
        wait = _backed_off(self._broken)
        with suppress(OSError):  # a full disk may be what broke the look
            self._remember(amiss={})
        # Of one error the log has one event, however often it comes.
        said = f"a look failed: {_in_words(error)}"
        if said != self._said:
            self._said = said
            outcome = "looked at again in a minute, then ever more seldom"
            told = Event(leases.now(), "failed", said, outcome)
            details = "" if isinstance(error, GpubedError) else "".join(format_exception(error))
            with suppress(OSError):
                if not self._is_going:
                    watch_log.append(self._paths, told, details)
            self._hear(told)
        return wait

    def recovered(self) -> None:
        """Tell that a look came to its end again, where the last did not.

        Raises:
            OSError: The log cannot be written.
        """
        if self._broken:
            self._broken, self._said = 0, ""
            self.tell("well", f"{self._paths.name} can be looked at again")

    def _tell_once(
        self, matter: str, event: str, why: str, outcome: str = "", nodes: Sequence[str] = ()
    ) -> None:
        said = f"{event}: {why}: {outcome}"
        if self.memory.told.get(matter) != said:
            self._remember(told={**self.memory.told, matter: said})
            self.tell(event, why, outcome, nodes)

    def _forget_told(self, matter: str) -> bool:
        """Let a matter be settled; say whether it was told before."""
        told = {other: said for other, said in self.memory.told.items() if other != matter}
        was = matter in self.memory.told
        self._remember(told=told)
        return was

    def _remember(self, **changes: Any) -> None:
        memory = self.memory.model_copy(update=changes)
        if memory != self.memory:
            self.memory = memory
            if not self._is_going:
                watch_memory.keep(self._paths, memory)

    def _leave(self, why: str, hint: str | None) -> State:
        """Leave it to a person; told once."""
        self._tell_once("cluster", "person", why, hint or f"gpubed status {self._paths.name}")
        return "amiss"

    def _keep_lease(self, cluster: Cluster) -> None:
        """Do what `renew --auto` does."""
        looked = renewal.look(cluster)
        end = looked.record.granted_until
        until = leases.local(end) if end else ""
        if error := looked.unasked:
            self._tell_once("lease", "unasked", f"the lease: {error.message}", error.hint or "")
        elif looked.refused:
            self._tell_once("lease", "lease", f"it ends {until}", looked.refused.message)
        elif looked.asked:
            asked = leases.local(looked.asked)
            self._tell_once("lease", "lease", f"asked until {asked}", f"granted until {until}")
        if looked.last:
            self._tell_once("last", "lease", looked.last)
        if looked.prepared:
            self.tell("lease", f"it ends {until}", "; ".join(looked.prepared))
        if fault := looked.unprepared:
            self._tell_once("end", "lease", f"it ends {until}", f"not prepared: {fault.message}")
        if looked.untold:
            self._tell_once("nodes", "lease", "nodes that mind it", looked.untold.message)
        elif self._forget_told("nodes"):
            self.tell("well", "all nodes know until when the lease lasts")

    def _look(self, cluster: Cluster) -> State:
        allocation = cluster.allocation
        testbed = registry.bound(allocation.backend, self._paths)
        try:
            found = condition.look(testbed, cluster)
            quarantined = self._quarantined(allocation, found)
        except GpubedError as error:
            why = f"{allocation.backend} cannot be asked: {error.message}"
            self._remember(amiss={})
            self._tell_once("testbed", "unasked", why, error.hint or "")
            return "amiss"
        if runlock.holder(self._paths.state):
            return self._pass()  # it has begun meanwhile, and what was seen may be its work
        if self._forget_told("testbed"):
            self.tell("well", f"{allocation.backend} answers again")
        self._tell_of_disks(found)
        self._tell_of_unknown(found)
        if found.unheard:
            self._remember(amiss={})
            return "amiss"
        faults = self._faults(found, allocation)
        now, before = leases.now(), self.memory.amiss
        since = {fault.key: before.get(fault.key, now) for fault in faults}
        self._remember(amiss=since, quarantined=quarantined)
        if self._lets_go(cluster):
            return "gone" if self.is_over else "amiss"
        held = self._spare([fault for fault in faults if fault.node in quarantined])
        broken = [fault for fault in faults if fault.node not in quarantined]
        if not broken:
            return self._rest(found, held)
        why = "; ".join(fault.why for fault in broken)
        # Who boots does not answer, and is no fault.
        patience = {fault.key: testbed.backend.boots_within_s for fault in broken if fault.boots}
        lasts = {key: (now - moment).total_seconds() for key, moment in before.items()}
        if not all(lasts.get(f.key, -1.0) >= patience.get(f.key, 0.0) for f in broken):
            return self._tell_of_new(why, broken)
        try:
            self._require_ours(cluster)
            condition.recognize(cluster, found)
            self._require_nobody_held(held)
        except GpubedError as error:
            return self._leave(f"{why}: {error.message}", error.hint)
        if self.memory.left == why or self._waits(why):
            return "amiss"
        return self._repair(cluster, broken, why)

    def _lets_go(self, cluster: Cluster) -> bool:
        """Release a cluster where that is due, or go on with it; say whether it is to go."""
        if warned := self._releasing:
            self._go_on(cluster, warned)
            return True
        return self._care(cluster) or self._releasing is not None

    def _care(self, cluster: Cluster) -> bool:
        """Do what is due about a cluster that nobody uses; say whether it was released."""
        policy, warned = cluster.plan.spec.lease.idle, self.memory.warned
        if not (policy or warned):
            return False
        why = "whether anybody uses it"
        try:
            used = idle.look(cluster, self.memory.quarantined)
            if used is None:
                return False
            act = idle.decide(used, warned, policy)
            why = f"last use {used.idle_s / 60:.0f} min ago: {used.why}"
            if act == "back":
                self._remember(warned=None)
                told = idle.take_back(cluster)
                self.tell("idle", why, told + idle.hook(self._paths, policy, "back", used))
            elif act == "warn" and policy:
                told = idle.warn(cluster, used, policy)
                self._remember(warned=Warned(used.idle_s, used.spell))
                self.tell("idle", why, told + idle.hook(self._paths, policy, "warn", used))
            elif act == "release" and warned:
                return self._release(cluster, warned, why)
        except Locked as error:
            self._tell_once("idle", "waits", why, error.message)
            return False
        except GpubedError as error:
            hint = f" ({error.hint})" if error.hint else ""
            self._tell_once("idle", "idle", error.message + hint, "tried again at the next look")
            return False
        self._forget_told("idle")
        return False

    def _release(self, cluster: Cluster, warned: Warned, why: str) -> bool:
        # On disk before anything goes: another watch goes on with what this one began.
        self._remember(warned=replace(warned, begun=True))
        if stays := self._given_back(cluster, idle.release, warned, why):
            self.tell("idle", why, stays)
        return not stays

    @property
    def _releasing(self) -> Warned | None:
        """The warning whose release did not come to its end; None also of a person's `down`."""
        warned = self.memory.warned
        return warned if warned and warned.begun and self._paths.removing.exists() else None

    def _go_on(self, cluster: Cluster, warned: Warned) -> None:
        """Go on with a release, further and further apart: half a cluster is of no use."""
        name, wait = self._paths.name, self.memory.wait_until
        if wait and leases.now() < wait:
            return
        why = f"the release of {name} did not come to its end"
        try:
            if stays := self._given_back(cluster, idle.finish, warned, why):
                back = f"gpubed down {name}; to have it back: gpubed up {name}"
                self._leave(f"{why}: {stays}", back)
        except Locked as error:
            self._tell_once("idle", "waits", why, error.message)
        except GpubedError as error:
            self._tell_once("idle", "idle", why, self._failed(error))

    def _given_back(self, cluster: Cluster, act: idle.GiveBack, warned: Warned, why: str) -> str:
        """Give the nodes back, and tell it; return in words why they stay, if they do."""
        held, linked = self.memory.quarantined, self._paths.state.is_symlink()
        with watch_log.kept(self._paths):
            done, gone = act(cluster, self._engine, warned, held)
        if not gone:
            return done
        nodes = tuple(node.name for node in cluster.allocation.nodes)
        told = Event(leases.now(), "idle", why, done, nodes)
        if not linked:
            watch_log.append(self._paths, told)
        self._hear(told)
        return ""

    def _tell_of_disks(self, found: Condition) -> None:
        """A full disk is nothing that `up` repairs."""
        if found.full:
            why = "; ".join(f"{node}: {why}" for node, why in found.full.items())
            first = condition.free(self._paths.name, next(iter(found.full)))
            self._tell_once("disks", "person", why, first)
        elif self._forget_told("disks"):
            self.tell("well", "disks have space again")

    def _tell_of_unknown(self, found: Condition) -> None:
        """Of a node that nobody hears of, nobody can tell whether anything is to be repaired."""
        if found.unheard:
            why, outcome = f"no node of {self._paths.name} answers", condition.NO_WAY
            hangs = f"where they hang: gpubed up {self._paths.name}"
            self._tell_once("unknown", "unasked", why, f"{outcome}; {hangs}")
        elif found.unknown:
            self._tell_once("unknown", "unasked", "; ".join(found.unknown.values()))
        elif self._forget_told("unknown"):
            self.tell("well", "nodes are heard of again")

    def _quarantined(self, allocation: Allocation, found: Condition) -> dict[str, str]:
        """Return the nodes that a person took out of use, and why.

        One that does not answer now is known from when it last did. One that took itself out of
        use is broken, and so the more when it does not answer.
        """
        silent = {node.name for node in allocation.nodes if found.nodes[node.name] != "ready"}
        kept = {name: why for name, why in self.memory.quarantined.items() if name in silent}
        held = {one.node: one.quarantine for one in found.unwell if one.quarantine}
        return kept | {name: one.reason for name, one in held.items() if one.is_by_hand}

    def _faults(self, found: Condition, allocation: Allocation) -> list[_Fault]:
        """List what `up` would put right; a full disk is nothing of that."""
        faults = [
            _Fault(name, name, f"{name} is {state}", state)
            for name, state in found.damaged.items()
            if name not in found.unknown
        ]
        faults += [_Fault(f"{one.unit} {one.node}", one.node, one.why) for one in found.stopped]
        head = allocation.head.name if allocation.nodes else ""
        faults += [_Fault(f"service {name}", head, why) for name, why in found.broken.items()]
        faults += [_Fault("links", "", condition.RESHAPED)] if found.reshaped else []
        if self.memory.unfinished and unfinished.state(self._paths) == unfinished.INTERRUPTED:
            why = "the last repair did not come to its end"
            faults.append(_Fault("configuration", "", why))
        return faults

    def _spare(self, faults: Sequence[_Fault]) -> str:
        """Leave alone what is in quarantine; return it in words."""
        held = self.memory.quarantined
        said = "; ".join(f"{fault.why}, in quarantine ({held[fault.node]})" for fault in faults)
        if said:
            name = self._paths.name
            outcome = (
                f"left alone; gpubed up {name} repairs it all the same; "
                f"gpubed health {name} --requalify NODE takes back one that answers"
            )
            self._tell_once("quarantine", "left", said, outcome)
        else:
            self._forget_told("quarantine")
        return said

    def _tell_of_new(self, why: str, broken: Sequence[_Fault]) -> State:
        """Wait for another look; after a repair that failed, nobody has to be told."""
        if not self.memory.failures:
            again = "looked at again before it is repaired"
            self._tell_once("cluster", "amiss", why, again, _nodes(broken))
        return "amiss"

    def _rest(self, found: Condition, held: str) -> State:
        """Let what was to be repaired be settled; of what nobody hears, nobody can tell that."""
        if found.unknown:
            return "amiss"
        self._remember(failures=0, failed="", wait_until=None, unfinished=False, left="")
        if self._forget_told("cluster"):
            self.tell("well", f"nothing of {self._paths.name} is left to repair")
        return "amiss" if held or found.full else "well"

    def _require_nobody_held(self, held: str) -> None:
        """Refuse a repair that would touch nodes in quarantine, too: `up` repairs all at once.

        Raises:
            GpubedError: It would.
        """
        if held:
            again = f"gpubed up {self._paths.name}"
            raise GpubedError(f"to repair it would touch what is left alone, too: {held}", again)

    def _require_ours(self, cluster: Cluster) -> None:
        """Refuse to repair where `up` would do more than that, or a person is to decide.

        Raises:
            GpubedError: It would.
        """
        paths, name = cluster.paths, cluster.name
        if paths.removing.exists():
            raise GpubedError(
                f"a `down` of {name} was begun and did not come to its end",
                f"gpubed down {name}; to have it back: gpubed up {name}",
            )
        if not paths.has_stack:
            raise GpubedError(f"the state of {name} is lost", f"gpubed audit {name}")
        leases.check_not_expired(paths)
        secret.require_key(paths)
        if load(paths.spec) != registry.reach(cluster.allocation.backend, paths).applied():
            raise GpubedError(
                f"{paths.spec} is not what was applied last", f"gpubed plan {name} says more"
            )
        bare = not cluster.plan.spec.configure or not cluster.allocation.nodes
        if not (bare or self.memory.unfinished) and (roles := due.now(cluster)):
            raise GpubedError(
                f"roles are due that nobody has applied yet: {', '.join(roles)}",
                f"gpubed up {name}",
            )

    def _waits(self, why: str) -> bool:
        """Say whether a repair has to wait: for its turn, or until some may begin again."""
        now = leases.now()
        if self.memory.wait_until and now < self.memory.wait_until:
            return True
        recent = self.memory.recent(now)
        if len(recent) < self._most:
            return False
        until = f" until {stamp(recent[-self._most] + DAY)}" if self._most else ""
        outcome = f"{self._most} repairs in 24 h are spent: it only watches{until}; to repair it:"
        self._tell_once("cluster", "spent", why, f"{outcome} gpubed up {self._paths.name}")
        return True

    def _repair(self, cluster: Cluster, broken: Sequence[_Fault], why: str) -> State:
        before, now, began = self.memory, leases.now(), time.monotonic()
        nodes = _nodes(broken)
        refused = list[str]()
        # On disk before anything is done: a watch that is killed has spent it all the same.
        self._remember(repairs=(*before.recent(now), now), unfinished=True)
        try:
            done = self._up(cluster, broken, _approve(self._paths.name, broken, refused))
        except Locked as error:
            self._remember(repairs=before.repairs, unfinished=before.unfinished)
            self._tell_once("cluster", "waits", why, error.message)
            return "amiss"
        except GpubedError as error:
            if refused:
                # Nothing was done, and nothing will be until somebody has decided.
                self._remember(repairs=before.repairs, unfinished=before.unfinished, left=why)
                return self._leave(f"{why}; {error.message}", error.hint)
            said = f"{why}: {error.message}"
            if said == before.failed and not isinstance(error, hung.StaysSilent):
                # As the last one, it has changed nothing: repairs are left for what else breaks.
                self._remember(repairs=before.repairs)
            self._remember(failed=said)
            self.tell("repair", why, self._failed(error), nodes)
            return "amiss"
        self._remember(amiss={}, failures=0, failed="", wait_until=None, unfinished=False, left="")
        self._forget_told("cluster")
        outcome = f"repaired in {time.monotonic() - began:.0f} s"
        if done.restarted:
            outcome += f"; restarted, since silent: {', '.join(done.restarted)}"
        self.tell("repair", why, outcome, nodes)
        return "well"

    def _up(
        self, cluster: Cluster, broken: Sequence[_Fault], approve: lost_state.Approve
    ) -> up.Done:
        paths = self._paths
        given_time = {fault.node for fault in broken if fault.boots}

        def still_wanted() -> None:
            there = paths.allocation.exists() and allocations.load(paths.allocation)
            if there != cluster.allocation:
                raise Locked(f"another run has changed {paths.name} meanwhile")
            self._require_ours(cluster)

        # A job's ranks share the processors with what is repaired; one on broken nodes ends soon,
        # unless it is made to outlive them.
        outlives = at_work.outlive_nodes(paths)
        with (
            nullcontext() if outlives else runlock.measuring(paths.state, "watch"),
            event_file(paths, "watch", None) as path,
            self._following(path),
        ):
            return up.up(
                paths,
                self._engine,
                approve=approve,
                still_wanted=still_wanted,
                given_time=given_time,
            )

    def _failed(self, error: GpubedError) -> str:
        """Remember that a repair, or a release, failed; return what to tell."""
        failures = self.memory.failures + 1
        wait = _backed_off(failures)
        until = leases.now() + timedelta(seconds=wait)
        self._remember(amiss={}, failures=failures, wait_until=until)
        hint = f" ({error.hint})" if error.hint else ""
        return f"failed: {error.message}{hint}; not again for {wait / 60:g} min"


def _is_gone(paths: ClusterPaths) -> bool:
    return not (paths.allocation.exists() or paths.has_stack)


def _backed_off(failures: int) -> float:
    """Return how long to wait after so many failures one after another, in seconds."""
    return min(_FIRST_WAIT_S * 2.0 ** min(failures - 1, 10), _LONGEST_WAIT_S)


def _in_words(error: Exception) -> str:
    if isinstance(error, GpubedError):
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return f"{type(error).__name__}: {error}"


def _nodes(faults: Sequence[_Fault]) -> list[str]:
    return sorted({fault.node for fault in faults if fault.node})


def _approve(name: str, broken: Sequence[_Fault], refused: list[str]) -> lost_state.Approve:
    """Return what lets broken nodes go, and nothing else; what it refuses it adds to a list."""
    lost = {fault.node for fault in broken if fault.state and fault.state not in _OWN_VIEW}

    def approve(lines: Sequence[str]) -> None:
        if beyond := costs.beyond(lines, lost):
            refused.extend(beyond)
            raise UsageError(
                f"to repair it would cost more than what is broken: {'; '.join(beyond)}",
                f"gpubed up {name}",
            )

    return approve

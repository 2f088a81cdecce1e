"""`gpubed watch`: looks at a cluster again and again, repairs what is broken, keeps its lease.

It repairs as `up` does, and only what `up` does unasked: whatever costs more than what is broken
is left to a person, and so is a specification that nobody has applied yet. One look is no reason
to act: a node that boots is as silent as one that is broken.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Literal

from gpubed.cluster import condition, renewal, watch_faults, watch_repair
from gpubed.cluster import lease as leases
from gpubed.cluster.condition import Condition
from gpubed.cluster.watch_faults import Fault
from gpubed.cluster.watch_log import Event
from gpubed.cluster.watch_release import Release
from gpubed.cluster.watch_repair import Repair
from gpubed.cluster.watch_telling import Telling, backed_off
from gpubed.core import runlock
from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.engines.stack import EngineName
from gpubed.nodes.cluster import Cluster
from gpubed.testbeds import registry
from gpubed.testbeds.specification import load_current

State = Literal["well", "amiss", "busy", "gone"]
"""What a look leads to; busy is a cluster that another run changes, gone one that is down."""


class Watch:
    """The watch of one cluster.

    Args:
        paths: Its paths.
        engine: What repairs run with.
        repairs: How many of them may begin within 24 hours.
        hear: Hears of events; they are in the log by then.
        following: Shows a repair's progress, given the file that it appends to.

    Attributes:
        telling: What it remembers and tells.
    """

    def __init__(
        self,
        paths: ClusterPaths,
        engine: EngineName,
        repairs: int,
        hear: Callable[[Event], None],
        following: Callable[[Path], AbstractContextManager[None]],
    ) -> None:
        self._paths, self._most = paths, repairs
        self.telling = Telling(paths, hear)
        self._release = Release(self.telling, engine)
        self._repair = Repair(self.telling, engine, repairs, following)
        self._guards = False  # whether its lock keeps a second one away
        self._broken, self._said = 0, ""  # looks that broke off one after another, and the last why

    def start(self, every_s: float) -> None:
        """Begin to look again and again: what another process saw is no look of this one."""
        self._guards = self._has_lock
        self.telling.remember(amiss={})
        said = f"a look every {every_s:g} s, at most {self._most} repairs in 24 h"
        self.telling.tell("started", said)

    def end(self, why: str) -> None:
        """Tell that nobody looks any more."""
        self.telling.tell("ended", why)

    @property
    def is_over(self) -> bool:
        """Whether there is no cluster, and no run that makes one or is about to remove it."""
        return self.telling.is_gone and runlock.holder(self._paths.state) is None

    @property
    def _has_lock(self) -> bool:
        """Whether the lock of who watches is this process's: a `down` takes it along."""
        return runlock.has_open(os.getpid(), self._paths.watching)

    def look(self) -> State:
        """Look once, and do what is due.

        Raises:
            OSError: The log, or what is remembered, cannot be written.
        """
        if self.is_over:
            name = self._paths.name
            over = f"the watch is over; gpubed up {name} makes it"
            self.telling.tell("gone", f"{name} is not up", over)
            return "gone"
        if self._guards and not self._has_lock:  # what it knows is of another cluster
            over = f"the watch is over; gpubed watch {self._paths.name} begins one of what is there"
            self.telling.tell("gone", f"{self._paths.name} was taken down meanwhile", over)
            return "gone"
        self.telling.mind_clock()
        who = runlock.holder(self._paths.state)
        if who and self.telling.is_going:
            return self._pass()
        try:
            cluster = load_current(self._paths, granted=self._release.granted)
        except GpubedError as error:
            error = watch_repair.begun_down(self._paths) or error
            self.telling.leave(error.message, error.hint)
            return "amiss"
        self._keep_lease(cluster)
        return self._pass() if who else self._look(cluster)

    def _pass(self) -> State:
        """Look at nothing while another run is at work, and forget what was amiss before it."""
        self.telling.remember(amiss={})
        return "busy"

    def survive(self, error: Exception) -> float:
        """Tell of a look that broke off; return for how many seconds to leave the cluster alone.

        What was amiss before it has not been seen twice in a row.

        Raises:
            UsageError: The command line or the specification is wrong, which no time heals.
            BrokenPipeError: Nobody listens any more.
        """
        if isinstance(error, UsageError | BrokenPipeError):
            raise error
        self._broken += 1
        with suppress(OSError):  # a full disk may be what broke the look
            self.telling.remember(amiss={})
        # Of one error the log has one event, however often it comes.
        said = f"a look failed: {_in_words(error)}"
        if said != self._said:
            self._said = said
            self.telling.broke_off(error, said)
        return backed_off(self._broken)

    def recovered(self) -> None:
        """Tell that a look came to its end again, where the last did not.

        Raises:
            OSError: The log cannot be written.
        """
        if self._broken:
            self._broken, self._said = 0, ""
            self.telling.tell("well", f"{self._paths.name} can be looked at again")

    def _keep_lease(self, cluster: Cluster) -> None:
        """Do what `renew --auto` does."""
        looked, tell_once = renewal.look(cluster), self.telling.tell_once
        end = looked.record.granted_until
        until = leases.local(end) if end else ""
        if error := looked.unasked:
            tell_once("lease", "unasked", f"the lease: {error.message}", error.hint or "")
        elif looked.refused:
            tell_once("lease", "lease", f"it ends {until}", looked.refused.message)
        elif looked.asked:
            asked = leases.local(looked.asked)
            tell_once("lease", "lease", f"asked until {asked}", f"granted until {until}")
        if looked.last:
            tell_once("last", "lease", looked.last)
        if looked.prepared:
            self.telling.tell("lease", f"it ends {until}", "; ".join(looked.prepared))
        if fault := looked.unprepared:
            tell_once("end", "lease", f"it ends {until}", f"not prepared: {fault.message}")
        if looked.untold:
            tell_once("nodes", "lease", "nodes that mind it", looked.untold.message)
        elif self.telling.settle("nodes"):
            self.telling.tell("well", "all nodes know until when the lease lasts")

    def _look(self, cluster: Cluster) -> State:
        if self._release.goes_on(cluster):  # whatever of it still answers
            return "gone" if self.is_over else "amiss"
        allocation = cluster.allocation
        testbed = registry.bound(allocation.backend, self._paths)
        try:
            found = condition.look(testbed, cluster)
        except GpubedError as error:
            why = f"{allocation.backend} cannot be asked: {error.message}"
            self.telling.remember(amiss={})
            self.telling.tell_once("testbed", "unasked", why, error.hint or "")
            return "amiss"
        if runlock.holder(self._paths.state):
            return self._pass()  # it has begun meanwhile, and what was seen may be its work
        if self.telling.settle("testbed"):
            self.telling.tell("well", f"{allocation.backend} answers again")
        self._tell_of_disks(found)
        self._tell_of_unknown(found)
        if found.unheard:
            self.telling.remember(amiss={})
            return "amiss"
        memory = self.telling.memory
        faults = watch_faults.faults(found, cluster, memory)
        quarantined = watch_faults.quarantined(found.damaged, found.unwell, memory)
        now, before = leases.now(), memory.amiss
        since = {fault.key: before.get(fault.key, now) for fault in faults}
        self.telling.remember(amiss=since, quarantined=quarantined)
        if self._release.lets_go(cluster):
            return "gone" if self.is_over else "amiss"
        held = self._spare([fault for fault in faults if fault.node in quarantined])
        broken = [fault for fault in faults if fault.node not in quarantined]
        if not broken:
            return self._rest(found, held)
        # Who boots does not answer, and is no fault.
        patience = {fault.key: testbed.backend.boots_within_s for fault in broken if fault.boots}
        lasts = {key: (now - moment).total_seconds() for key, moment in before.items()}
        if not all(lasts.get(f.key, -1.0) >= patience.get(f.key, 0.0) for f in broken):
            return self._tell_of_new(broken)
        return "well" if self._repair.begin(cluster, found, broken, held) else "amiss"

    def _tell_of_disks(self, found: Condition) -> None:
        """A full disk is nothing that `up` repairs."""
        if found.full:
            why = "; ".join(f"{node}: {why}" for node, why in found.full.items())
            first = condition.free(self._paths.name, next(iter(found.full)))
            self.telling.tell_once("disks", "person", why, first)
        elif self.telling.settle("disks"):
            self.telling.tell("well", "disks have space again")

    def _tell_of_unknown(self, found: Condition) -> None:
        """Of a node that nobody hears of, nobody can tell whether anything is to be repaired."""
        if found.unheard:
            why, outcome = f"no node of {self._paths.name} answers", condition.NO_WAY
            hangs = f"where they hang: gpubed up {self._paths.name}"
            self.telling.tell_once("unknown", "unasked", why, f"{outcome}; {hangs}")
        elif found.unknown:
            self.telling.tell_once("unknown", "unasked", "; ".join(found.unknown.values()))
        elif self.telling.settle("unknown"):
            self.telling.tell("well", "nodes are heard of again")

    def _spare(self, faults: Sequence[Fault]) -> str:
        """Leave alone what is in quarantine; return it in words."""
        held = self.telling.memory.quarantined
        said = "; ".join(f"{fault.why}, in quarantine ({held[fault.node]})" for fault in faults)
        if said:
            name = self._paths.name
            outcome = (
                f"left alone; gpubed up {name} repairs it all the same; "
                f"gpubed health {name} --requalify NODE takes back one that answers"
            )
            self.telling.tell_once("quarantine", "left", said, outcome)
        else:
            self.telling.settle("quarantine")
        return said

    def _tell_of_new(self, broken: Sequence[Fault]) -> State:
        """Wait for another look; after a repair that failed, nobody has to be told."""
        if not self.telling.memory.failures:
            why, again = watch_faults.why(broken), "looked at again before it is repaired"
            self.telling.tell_once("cluster", "amiss", why, again, watch_faults.nodes(broken))
        return "amiss"

    def _rest(self, found: Condition, held: str) -> State:
        """Let what was to be repaired be settled; of what nobody hears, nobody can tell that."""
        if found.unknown:
            return "amiss"
        self.telling.remember(failures=0, failed="", wait_until=None, unfinished=False, left="")
        if self.telling.settle("cluster"):
            self.telling.tell("well", f"nothing of {self._paths.name} is left to repair")
        return "amiss" if held or found.full else "well"


def _in_words(error: Exception) -> str:
    if isinstance(error, GpubedError):
        return f"{error.message} ({error.hint})" if error.hint else error.message
    return f"{type(error).__name__}: {error}"

"""Repairs what a watch found broken, as `up` does, and only what `up` does unasked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from gpubed.cluster import condition, costs, hung, lost_state, up, watch_faults
from gpubed.cluster import lease as leases
from gpubed.cluster.condition import Condition
from gpubed.cluster.events import event_file
from gpubed.cluster.watch_faults import Fault
from gpubed.cluster.watch_log import stamp
from gpubed.cluster.watch_memory import DAY
from gpubed.cluster.watch_telling import Telling
from gpubed.configuration import due
from gpubed.core import record, runlock, secret
from gpubed.core.errors import GpubedError, Locked, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.engines.stack import EngineName
from gpubed.jobs.runs import at_work
from gpubed.nodes import allocation as allocations
from gpubed.nodes.cluster import Cluster
from gpubed.testbeds import registry
from gpubed.testbeds.specification import load

# What we see ourselves, and may be wrong about: such a node may be whole, with all that is on it.
_OWN_VIEW = {condition.UNREACHABLE, "cut", "unshaped", condition.UNRECOGNIZED}


class Repair:
    """What a watch does about what is broken.

    Args:
        telling: What it remembers and tells.
        engine: What repairs run with.
        most: How many of them may begin within 24 hours.
        following: Shows a repair's progress, given the file that it appends to.
    """

    def __init__(
        self,
        telling: Telling,
        engine: EngineName,
        most: int,
        following: Callable[[Path], AbstractContextManager[None]],
    ) -> None:
        self._telling, self._engine, self._most = telling, engine, most
        self._following = following

    def begin(self, cluster: Cluster, found: Condition, broken: Sequence[Fault], held: str) -> bool:
        """Repair what is broken, where that is allowed and due; say whether all is well then.

        Args:
            held: What is broken of nodes in quarantine, in words.
        """
        why = watch_faults.why(broken)
        try:
            self._require_ours(cluster)
            condition.recognize(cluster, found)
            self._require_nobody_held(held)
        except GpubedError as error:
            self._telling.leave(f"{why}: {error.message}", error.hint)
            return False
        if self._telling.memory.left == why or self._waits(why):
            return False
        return self._repair(cluster, broken, why)

    def _require_nobody_held(self, held: str) -> None:
        """Refuse a repair that would touch nodes in quarantine, too: `up` repairs all at once.

        Raises:
            GpubedError: It would.
        """
        if held:
            again = f"gpubed up {self._telling.paths.name}"
            raise GpubedError(f"to repair it would touch what is left alone, too: {held}", again)

    def _require_ours(self, cluster: Cluster) -> None:
        """Refuse to repair where `up` would do more than that, or a person is to decide.

        Raises:
            GpubedError: It would.
        """
        paths, name = cluster.paths, cluster.name
        if begun := begun_down(paths):
            raise begun
        if not paths.has_stack:
            raise GpubedError(f"the state of {name} is lost", f"gpubed audit {name}")
        leases.check_not_expired(paths)
        secret.require_key(paths)
        if load(paths.spec) != registry.reach(cluster.allocation.backend, paths).applied():
            raise GpubedError(
                f"{paths.spec} is not what was applied last", f"gpubed plan {name} says more"
            )
        bare = not cluster.plan.spec.configure or not cluster.allocation.nodes
        if not (bare or self._telling.memory.unfinished) and (roles := due.now(cluster)):
            raise GpubedError(
                f"roles are due that nobody has applied yet: {', '.join(roles)}",
                f"gpubed up {name}",
            )

    def _waits(self, why: str) -> bool:
        """Say whether a repair has to wait: for its turn, or until some may begin again."""
        now = leases.now()
        if self._telling.memory.wait_until and now < self._telling.memory.wait_until:
            return True
        recent = self._telling.memory.recent(now)
        if len(recent) < self._most:
            return False
        until = f" until {stamp(recent[-self._most] + DAY)}" if self._most else ""
        outcome = f"{self._most} repairs in 24 h are spent: it only watches{until}; to repair it:"
        self._telling.tell_once(
            "cluster", "spent", why, f"{outcome} gpubed up {self._telling.paths.name}"
        )
        return True

    def _repair(self, cluster: Cluster, broken: Sequence[Fault], why: str) -> bool:
        before, now, began = self._telling.memory, leases.now(), time.monotonic()
        nodes = watch_faults.nodes(broken)
        refused = list[str]()
        # On disk before anything is done: a watch that is killed has spent it all the same.
        self._telling.remember(repairs=(*before.recent(now), now), unfinished=True)
        try:
            done = self._up(cluster, broken, _approve(self._telling.paths.name, broken, refused))
        except Locked as error:
            self._telling.remember(repairs=before.repairs, unfinished=before.unfinished)
            self._telling.tell_once("cluster", "waits", why, error.message)
            return False
        except GpubedError as error:
            if refused:
                # Nothing was done, and nothing will be until somebody has decided.
                self._telling.remember(
                    repairs=before.repairs, unfinished=before.unfinished, left=why
                )
                self._telling.leave(f"{why}; {error.message}", error.hint)
                return False
            said = f"{why}: {error.message}"
            if said == before.failed and not isinstance(error, hung.StaysSilent):
                # As the last one, it has changed nothing: repairs are left for what else breaks.
                self._telling.remember(repairs=before.repairs)
            self._telling.remember(failed=said)
            self._telling.tell("repair", why, self._telling.failed(error), nodes)
            return False
        self._telling.remember(
            amiss={}, failures=0, failed="", wait_until=None, unfinished=False, left=""
        )
        self._telling.settle("cluster")
        outcome = f"repaired in {time.monotonic() - began:.0f} s"
        if done.restarted:
            outcome += f"; restarted, since silent: {', '.join(done.restarted)}"
        self._telling.tell("repair", why, outcome, nodes)
        return True

    def _up(
        self, cluster: Cluster, broken: Sequence[Fault], approve: lost_state.Approve
    ) -> up.Done:
        paths = self._telling.paths
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


def begun_down(paths: ClusterPaths) -> GpubedError | None:
    """Return what to tell of a `down` that did not come to its end; None where none was begun."""
    if record.read(paths).removing is None:
        return None
    return GpubedError(
        f"a `down` of {paths.name} was begun and did not come to its end",
        f"gpubed down {paths.name}; to have it back: gpubed up {paths.name}",
    )


def _approve(name: str, broken: Sequence[Fault], refused: list[str]) -> lost_state.Approve:
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

"""What a watch remembers and tells: to its log, and to who listens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from traceback import format_exception
from typing import Any

from gpubed.cluster import idle, watch_log, watch_memory
from gpubed.cluster import lease as leases
from gpubed.cluster.watch_log import Event
from gpubed.cluster.watch_memory import LONGEST_WAIT
from gpubed.core import runlock
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths

_MAY_REMOVE = {"down", ""}  # a full disk leaves a lock without a verb
_FIRST_WAIT_S = 60.0


class Telling:
    """Both, of one cluster.

    Args:
        paths: The cluster's paths.
        hear: Hears of events; they are in the log by then.
    """

    def __init__(self, paths: ClusterPaths, hear: Callable[[Event], None]) -> None:
        self.paths, self.hear = paths, hear
        self.memory = watch_memory.load(paths)

    @property
    def is_gone(self) -> bool:
        """Whether there is no cluster, nor one that our own release has left something of."""
        there = self.paths.allocation.exists() or self.paths.has_stack
        return not (there or idle.is_unfinished(self.paths))

    @property
    def is_going(self) -> bool:
        """Whether the cluster's folder is gone, or about to be: nothing is written into it."""
        who = runlock.holder(self.paths.state)
        return self.is_gone or (who is not None and who.verb in _MAY_REMOVE)

    def remember(self, **changes: Any) -> None:
        """Change what is remembered; see `watch_memory.Memory`.

        Raises:
            OSError: It cannot be written.
        """
        memory = self.memory.model_copy(update=changes)
        if memory != self.memory:
            self.memory = memory
            if not self.is_going:
                watch_memory.keep(self.paths, memory)

    def mind_clock(self) -> None:
        """Forget times that are yet to come, and say so.

        Raises:
            OSError: It cannot be written.
        """
        now = leases.now()
        known = self.memory.by(now)
        if known != self.memory:
            self.remember(**dict(known))
            why = f"{self.paths.watch} has times that are yet to come: the clock was ahead"
            self.tell("clock", why, "they count as none: repairs are as due as ever")

    def tell(self, event: str, why: str, outcome: str = "", nodes: Sequence[str] = ()) -> None:
        """Write an event to the log, and let it be heard.

        Raises:
            OSError: The log cannot be written.
        """
        told = Event(leases.now(), event, why, outcome, tuple(nodes))
        if not self.is_going:
            watch_log.append(self.paths, told)
        self.hear(told)

    def tell_once(
        self, matter: str, event: str, why: str, outcome: str = "", nodes: Sequence[str] = ()
    ) -> None:
        """Tell it unless it is what was told last of the matter."""
        said = f"{event}: {why}: {outcome}"
        if self.memory.told.get(matter) != said:
            self.remember(told={**self.memory.told, matter: said})
            self.tell(event, why, outcome, nodes)

    def settle(self, matter: str) -> bool:
        """Let a matter be settled; say whether it was told before."""
        told = {other: said for other, said in self.memory.told.items() if other != matter}
        was = matter in self.memory.told
        self.remember(told=told)
        return was

    def leave(self, why: str, hint: str | None) -> None:
        """Leave it to a person; told once."""
        self.tell_once("cluster", "person", why, hint or f"gpubed status {self.paths.name}")

    def failed(self, error: GpubedError) -> str:
        """Remember that a repair, or a release, failed; return what to tell."""
        failures = self.memory.failures + 1
        wait = backed_off(failures)
        until = leases.now() + timedelta(seconds=wait)
        self.remember(amiss={}, failures=failures, wait_until=until)
        hint = f" ({error.hint})" if error.hint else ""
        return f"failed: {error.message}{hint}; not again for {wait / 60:g} min"

    def broke_off(self, error: Exception, said: str) -> None:
        """Tell of a look that broke off, wherever it can be told.

        The log has the traceback of what nobody expected.
        """
        outcome = "looked at again in a minute, then ever more seldom"
        told = Event(leases.now(), "failed", said, outcome)
        details = "" if isinstance(error, GpubedError) else "".join(format_exception(error))
        with suppress(OSError):
            if not self.is_going:
                watch_log.append(self.paths, told, details)
        self.hear(told)


def backed_off(failures: int) -> float:
    """Return how long to wait after so many failures one after another, in seconds."""
    return min(_FIRST_WAIT_S * 2.0 ** min(failures - 1, 10), LONGEST_WAIT.total_seconds())

"""A silent run of Pulumi's CLI: what it waits for is told, and it does not wait for ever.

The plugins of clouds have no limit of their own: a service that takes a connection and never
answers would hold them until somebody loses patience. Dynamic resources have limits of their
own, and tell their progress elsewhere, so that those are let be.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

from gpubed.engines.embedded import LogEvent, ResourceEvent

_DYNAMIC = "pulumi-python:"
_EVERY_S = 60.0
LIMIT_S = 1800.0  # what Pulumi's OpenStack plugin itself waits for a server


class Silence:
    """Watches the events of a run while its body runs.

    Args:
        tell: Hears what is waited for, each minute.
        end: Ends the run; called once, when it has been silent for too long.
        limit: How many seconds that is.
        every: How many seconds there are between two remarks.
    """

    def __init__(
        self,
        tell: Callable[[LogEvent], None],
        end: Callable[[], None],
        *,
        limit: float = LIMIT_S,
        every: float = _EVERY_S,
    ) -> None:
        self._tell, self._end, self._limit, self._every = tell, end, limit, every
        self._pending: dict[str, ResourceEvent] = {}
        self._heard = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="silence", daemon=True)
        self.reason = ""

    def heard(self, event: ResourceEvent) -> None:
        """Take note of a step that began or ended."""
        self._heard = time.monotonic()
        if event.status == "started":
            self._pending[event.urn] = event
        else:
            self._pending.pop(event.urn, None)

    def __enter__(self) -> Silence:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            pending, silent = list(self._pending.values()), time.monotonic() - self._heard
            if silent < self._every or any(step.type.startswith(_DYNAMIC) for step in pending):
                continue
            steps = ", ".join(f"{s.op} {s.type.rsplit(':', 1)[-1]} {s.name}" for s in pending)
            words = f"no answer for {silent:.0f} s; pending: {steps or 'the first answer'}"
            if silent < self._limit:
                self._tell(LogEvent("warning", words, None))
                continue
            self.reason = words
            self._end()
            return

"""Events: one at a time to the caller's sink, counted as they end."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter

from gpubed.engines.embedded.events import EventSink, LogEvent, ResourceEvent
from gpubed.engines.embedded.state import State

# Halves of a replacement: Pulumi counts the whole.
_HALVES = frozenset(
    {"create-replacement", "read-replacement", "delete-replaced", "discard-replaced"}
)


class Reporter:
    """Collects what happens in a run and passes it on.

    Args:
        sink: The caller's; called from one thread at a time.
        preview: Steps are planned, not done.
    """

    def __init__(self, sink: EventSink, *, preview: bool) -> None:
        self._sink = sink
        self._preview = preview
        self._lock = threading.Lock()
        self.steps: list[ResourceEvent] = []
        self.changes: Counter[str] = Counter()
        self.last_error: str | None = None

    @property
    def failed(self) -> list[ResourceEvent]:
        """The steps that failed so far."""
        with self._lock:
            return [event for event in self.steps if event.status == "failed"]

    def started(self, op: str, state: State, why: tuple[str, ...] = ()) -> ResourceEvent:
        """Announces a step and returns the event to end it with."""
        event = ResourceEvent(op, "started", state.urn, state.type, state.name, why=why)
        if not self._preview:
            self._send(event)
        return event

    def done(self, event: ResourceEvent, counts_as: str) -> None:
        """Reports a step as finished, or planned in a preview."""
        status = "planned" if self._preview else "done"
        self._finish(dataclasses.replace(event, status=status), counts_as)

    def fail(self, event: ResourceEvent, seconds: float, message: str) -> None:
        """Reports a step as failed."""
        self._finish(
            dataclasses.replace(event, status="failed", seconds=seconds, message=message), None
        )

    def log(self, severity: str, message: str, urn: str | None = None) -> None:
        """Passes on a line of text."""
        if severity == "error":
            self.last_error = message
        self._send(LogEvent(severity, message, urn))

    def _finish(self, event: ResourceEvent, counts_as: str | None) -> None:
        if _is_internal(event):
            return
        with self._lock:
            self.steps.append(event)
            if counts_as and counts_as not in _HALVES:
                self.changes[counts_as] += 1
            self._sink(event)

    def _send(self, event: ResourceEvent | LogEvent) -> None:
        if isinstance(event, ResourceEvent) and _is_internal(event):
            return
        with self._lock:
            self._sink(event)


def _is_internal(event: ResourceEvent) -> bool:
    """Returns whether Pulumi too keeps a step to itself, uncounted."""
    return event.op == "remove-pending-replace" or event.type.startswith("pulumi:providers:")

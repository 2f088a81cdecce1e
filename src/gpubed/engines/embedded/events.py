"""Events of a run, their delivery to the caller, and the result they add up to."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

# Pulumi counts the whole replacement.
_HALVES = frozenset({"create-replacement", "delete-replaced"})


@dataclass(frozen=True)
class ResourceEvent:
    """One step on one resource.

    Attributes:
        op: Pulumi's operation name (`create`, `same`, `update`, `replace`, …).
        status: `planned` in a preview, else `started`, `done` or `failed`.
        type: The resource's type.
        name: The resource's name in the program.
        seconds: The step's duration; None until it has ended.
        why: The inputs that changed or forced the replacement, in alphabetical order.
        message: The failure in one line, for the user.
    """

    op: str
    status: str
    urn: str
    type: str
    name: str
    seconds: float | None = None
    why: tuple[str, ...] = ()
    message: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "why", tuple(sorted(self.why)))


@dataclass(frozen=True)
class LogEvent:
    """A line from the program, a provider or the engine itself."""

    severity: str
    message: str
    urn: str | None = None


EventSink = Callable[[ResourceEvent | LogEvent], None]


def discard(_event: ResourceEvent | LogEvent) -> None:
    """Ignore an event."""


@dataclass(frozen=True)
class Result:
    """The outcome of a preview, up, refresh or destroy.

    Attributes:
        changes: The number of resources by operation, `same` included; the two halves of a
            replacement are steps, but count as one `replace`.
        steps: The last event of every step, in order of completion.
        outputs: The stack's outputs; secrets read `[secret]`.
        seconds: The wall time.
    """

    changes: Mapping[str, int]
    steps: tuple[ResourceEvent, ...]
    outputs: Mapping[str, Any]
    seconds: float


class Reporter:
    """Passes the events of a run on, one at a time, and counts them."""

    def __init__(self, sink: EventSink, *, preview: bool) -> None:
        self._sink = sink
        self._preview = preview
        self._lock = threading.Lock()
        self.steps: list[ResourceEvent] = []
        self.changes: Counter[str] = Counter()
        self.last_error = ""

    @property
    def failed(self) -> list[ResourceEvent]:
        """The steps that failed so far."""
        with self._lock:
            return [event for event in self.steps if event.status == "failed"]

    def started(self, op: str, state: Any, why: tuple[str, ...] = ()) -> ResourceEvent:
        """Report the start of a step on a `State`; return the event to pass to `ended`."""
        event = ResourceEvent(op, "started", state.urn, state.type, state.name, why=why)
        if not self._preview and not _is_internal(event):
            with self._lock:
                self._sink(event)
        return event

    def ended(self, event: ResourceEvent, counts_as: str = "", **fields: Any) -> None:
        """Report the end of a step, by default as `planned` in a preview and else as `done`."""
        if _is_internal(event):
            return
        fields = {"status": "planned" if self._preview else "done", **fields}
        event = dataclasses.replace(event, **fields)
        with self._lock:
            self.steps.append(event)
            if counts_as and counts_as not in _HALVES:
                self.changes[counts_as] += 1
            self._sink(event)

    def log(self, severity: str, message: str, urn: str | None = None) -> None:
        """Pass on a line of text."""
        if severity == "error":
            self.last_error = message
        with self._lock:
            self._sink(LogEvent(severity, message, urn))


def _is_internal(event: ResourceEvent) -> bool:
    """Return whether Pulumi's CLI neither shows nor counts the step."""
    return event.op == "remove-pending-replace" or event.type.startswith("pulumi:providers:")

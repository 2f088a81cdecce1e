"""Events of a run, the result they add up to, and the engine's own errors."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.reading import Unreadable

CLI_HINT = "use the Pulumi CLI for this stack; install it with `gpubed doctor --fix`"
_LONGEST = 200  # characters of a name, which in a damaged state may have any length
# Not counted: Pulumi counts the whole replacement.
_HALVES = frozenset({"create-replacement", "delete-replaced"})


@dataclass(frozen=True)
class ResourceEvent:
    """One step on one resource."""

    op: str  # Pulumi's operation name (`create`, `same`, `update`, `replace`, …)
    status: str  # `planned` in a preview, else `started`, `done` or `failed`
    urn: str
    type: str
    name: str  # the resource's name in the program
    seconds: float | None = None  # the step's duration; None until it has ended
    # The inputs that changed or forced the replacement, in alphabetical order
    why: tuple[str, ...] = ()
    message: str | None = None  # the failure in one line, for the user

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
    """

    changes: Mapping[str, int]
    steps: tuple[ResourceEvent, ...]  # the last event of every step, in order of completion
    outputs: Mapping[str, Any]  # the stack's outputs; secrets read `[secret]`
    seconds: float  # the wall time


class Reporter:
    """Passes the events of a run on, one at a time, and counts them."""

    def __init__(self, sink: EventSink, *, preview: bool) -> None:
        self._sink = sink
        self._preview = preview
        self._lock = threading.Lock()
        self.steps: list[ResourceEvent] = []
        self.changes: Counter[str] = Counter()
        self.last_error = ""

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


def last_words(text: str) -> str:
    """Return the exception at the end of a traceback, with all its lines; other text unchanged."""
    lines = text.strip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith("  File ")]
    rest = lines[frames[-1] :] if frames else lines
    # In a traceback, only the exception is not indented.
    begins = next((n for n, line in enumerate(rest) if line and not line[0].isspace()), 0)
    return "\n".join(rest[begins:]).strip()


class StepFailed(GpubedError):
    """One or more steps failed; everything that finished has been saved."""

    def __init__(self, events: Sequence[ResourceEvent]) -> None:
        self.events = tuple(events)
        first = self.events[0]
        more = f" (and {len(self.events) - 1} more)" if len(self.events) > 1 else ""
        super().__init__(
            f"{first.op} of {first.name} ({first.type}) failed: {first.message}{more}",
            "fix the cause and run the same command again; finished steps are saved",
        )


class ProgramFailed(GpubedError):
    """The stack's program raised an exception."""


class ProviderFailed(Exception):
    """A provider answered a call with an error; the text is its traceback."""

    @property
    def reason(self) -> str:
        """The last lines of the text, without the traceback."""
        return last_words(str(self)) or "the provider gave no reason"


class ProviderLost(ProviderFailed):
    """The provider's process ended during a call, which may have had its effect."""


class DamagedState(Unreadable):
    """The state breaks the rules of Pulumi's engines."""


class Refusal(UsageError):
    """The program or the state uses a Pulumi feature that the embedded engine lacks."""

    def __init__(self, feature: str, where: str) -> None:
        what = f"{feature[:_LONGEST]} ({where[:_LONGEST]})"
        super().__init__(f"the embedded engine does not support {what}", CLI_HINT)

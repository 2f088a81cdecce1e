"""What the engine tells its caller while it works."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class ResourceEvent:
    """One step on one resource.

    Attributes:
        op: Pulumi's operation name (`create`, `same`, `update`, `replace`, …).
        status: `planned` in a preview, else `started`, `done` or `failed`.
        urn: The resource.
        type: Its type.
        name: Its name in the program.
        seconds: How long the step took, once it is over.
        why: The inputs that changed or forced the replacement, in alphabetical order: engines
            and drivers have none of their own.
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
    """The sink of a caller that does not listen."""

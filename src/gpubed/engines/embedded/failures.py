"""The engine's own errors."""

from __future__ import annotations

from collections.abc import Sequence

from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.reading import Unreadable
from gpubed.engines.embedded.events import ResourceEvent

CLI_HINT = "use the Pulumi CLI for this stack; install it with `gpubed doctor --fix`"
_LONGEST = 200  # characters of a name, which in a damaged state may have any length


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
        """The text without the traceback before it."""
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

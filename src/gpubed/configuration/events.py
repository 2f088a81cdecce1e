"""Events of a run of Ansible, as the callback plugin `gpubed_events` writes them.

Answers of tasks come from nodes, so each event has a fixed shape and short, harmless texts.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, StringConstraints

from gpubed.configuration.roles import PHASES
from gpubed.core.progress import emit
from gpubed.core.text import printable

FILE = "GPUBED_ANSIBLE_EVENTS"
NOT_TRUSTED = "it does not trust the server that it downloads from: certificate verify failed"
_UNTRUSTED = re.compile("certificate.verify.failed", re.IGNORECASE)
_BROKE = "Task failed: Mitogen was disconnected"
_Name = Annotated[str, StringConstraints(max_length=200), AfterValidator(printable)]
_Words = Annotated[str, StringConstraints(max_length=4100), AfterValidator(printable)]


class Event(BaseModel):
    """A phase begins, a task begins or has a result on a node, or the run ends."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    event: Literal["play", "task", "ok", "skipped", "failed", "ignored", "unreachable", "stats"]
    play: _Name = ""
    role: _Name | None = None
    task: _Name = ""
    host: _Name = ""
    seconds: Annotated[FiniteFloat, Field(ge=0)] = 0.0
    # At the end, the number of changed tasks by node
    changed: bool | dict[_Name, Annotated[int, Field(ge=0)]] = False
    reason: _Words | None = None


@dataclass
class Outcome:
    """The outcome of a run of the playbooks."""

    # Number of changed tasks by node, of those that took part
    changed: dict[str, int] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)  # seconds by phase
    log: Path | None = None  # ansible's output; of a long one, its beginning and end


class Watcher:
    """Turns Ansible's events into gpubed's and remembers the first failure."""

    def __init__(self) -> None:
        self.outcome = Outcome()
        self.failure: str | None = None
        self.left: set[str] = set()
        self._phase: str | None = None
        self._since = 0.0
        self._worked: dict[str, float] = defaultdict(float)
        self._lost: set[str] = set()

    def handle(self, event: Event) -> None:
        """Handle the next event."""
        if event.event == "play":
            self._enter(event.play.lower())
        elif event.event == "task":
            emit("task", phase=self._phase, role=event.role, task=event.task)
        elif isinstance(event.changed, dict):
            self.outcome.changed = event.changed
        else:
            self._host(event)

    def finish(self) -> None:
        """End the last phase."""
        self._enter(None)

    def _enter(self, phase: str | None) -> None:
        now = time.monotonic()
        if self._phase:
            seconds = round(now - self._since, 2)
            self.outcome.phases[self._phase] = seconds
            worked = {node: round(took, 2) for node, took in self._worked.items()}
            status = "failed" if self._lost else "done"
            emit("phase", phase=self._phase, status=status, seconds=seconds, nodes=worked)
        self._worked.clear()
        self._lost.clear()
        self._phase, self._since = phase if phase in PHASES else None, now
        if self._phase:
            emit("phase", phase=self._phase, status="started")

    def _host(self, result: Event) -> None:
        host, task = result.host, result.task
        # Mark the node's words, so that no line looks like gpubed's own.
        reason = "\n  | ".join((result.reason or "").splitlines())
        if _UNTRUSTED.search(reason):  # pip tells it in ten lines
            reason = NOT_TRUSTED
        self._worked[host] += result.seconds
        if result.role:  # the ledger is written after a role that failed, too
            self._lost.discard(host)  # the node goes on: a block rescued it
        if result.event in ("failed", "unreachable"):
            self._lost.add(host)
            # Mitogen reports a lost connection as a failure of the task.
            if result.event == "unreachable" or reason.startswith(_BROKE):
                self.left.add(host)
            part = result.role or self._phase
            where = f"{part}: {task}" if part else task
            self.failure = self.failure or f"{where} failed on {host}: {reason}"
            emit("host", host=host, task=task, status=result.event, message=reason)
        elif result.changed:
            emit("host", host=host, task=task, status="changed")

"""Events of a run of Ansible, as the callback plugin `gpubed_events` writes them.

Nodes, which are not trusted, write the answers of tasks: events have a fixed shape and short,
printable texts.
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
    """The start of a phase or a task, the result of a task on a node, or the end of the run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    event: Literal["play", "task", "ok", "skipped", "failed", "ignored", "unreachable", "stats"]
    play: _Name = ""
    role: _Name | None = None
    task: _Name = ""
    host: _Name = ""
    seconds: Annotated[FiniteFloat, Field(ge=0)] = 0.0
    # Whether the task changed the node; at the end of the run, the number of such tasks by node.
    changed: bool | dict[_Name, Annotated[int, Field(ge=0)]] = False
    reason: _Words | None = None


@dataclass
class Outcome:
    """The outcome of a run of a playbook."""

    changed: dict[str, int] = field(default_factory=dict)  # number of changed tasks by node
    phases: dict[str, float] = field(default_factory=dict)  # seconds by phase
    log: Path | None = None  # Ansible's output; of a long output, the start and the end


class Watcher:
    """Turns Ansible's events into gpubed's.

    Attributes:
        failure: The first failure, as a message.
        lost: Nodes to which the connection failed.
    """

    def __init__(self) -> None:
        self.outcome = Outcome()
        self.failure: str | None = None
        self.lost: set[str] = set()
        self._phase: str | None = None
        self._since = 0.0
        self._seconds: dict[str, float] = defaultdict(float)  # of tasks in this phase, by node
        self._failed: set[str] = set()  # nodes in this phase

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
            nodes = {node: round(took, 2) for node, took in self._seconds.items()}
            status = "failed" if self._failed else "done"
            emit("phase", phase=self._phase, status=status, seconds=seconds, nodes=nodes)
        self._seconds.clear()
        self._failed.clear()
        self._phase, self._since = phase if phase in PHASES else None, now
        if self._phase:
            emit("phase", phase=self._phase, status="started")

    def _host(self, result: Event) -> None:
        host, task = result.host, result.task
        # Indented, so that a node's text cannot pass for a line of gpubed.
        reason = "\n  | ".join((result.reason or "").splitlines())
        if _UNTRUSTED.search(reason):  # ten lines in pip's output
            reason = NOT_TRUSTED
        self._seconds[host] += result.seconds
        if result.role:  # the ledger's tasks, which also run after a failure, have no role
            self._failed.discard(host)  # a block rescued the node
        if result.event in ("failed", "unreachable"):
            self._failed.add(host)
            # Mitogen reports a lost connection as a failure of the task.
            if result.event == "unreachable" or reason.startswith(_BROKE):
                self.lost.add(host)
            part = result.role or self._phase
            where = f"{part}: {task}" if part else task
            self.failure = self.failure or f"{where} failed on {host}: {reason}"
            emit("host", host=host, task=task, status=result.event, message=reason)
        elif result.changed:
            emit("host", host=host, task=task, status="changed")

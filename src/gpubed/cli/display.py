"""Shows live progress of a run from its event stream.

On a terminal, finished steps scroll by, and running steps stay at the bottom with their elapsed
time. Without a terminal, each step that starts or ends is a plain line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from gpubed.cli import status_view
from gpubed.cli.ui import UI
from gpubed.cluster import lost_state
from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.progress import Event, Follower
from gpubed.engines import interruption

_VERBS = {
    "create": ("creating", "created"),
    "update": ("updating", "updated"),
    "replace": ("replacing", "replaced"),
    "create-replacement": ("creating again", "created again"),
    "delete-replaced": ("removing the old", "removed the old"),
    "delete": ("removing", "removed"),
    "read": ("reading", "read"),
    "refresh": ("refreshing", "refreshed"),
}
# The engine only forgets volumes, which are retained; `down` reports whether they were removed.
_OF_VOLUMES = {"delete-replaced": ("leaving the old", "left the old")}
_SIGN: dict[str, str] = {"create-replacement": "replace", "delete-replaced": "delete"}
# What handlers raise for events with other fields, from another program or version.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
_QUIET = {"same", "read", "refresh", "replace"}


class WorkerFailed(GpubedError):
    """A worker reported a failure; its exit code becomes the run's."""

    def __init__(self, message: str, hint: str | None, exit_code: int) -> None:
        super().__init__(message, hint)
        self.exit_code = exit_code


class Display:
    """Shows events; keeps the duration of each phase, and which roles were due on which nodes."""

    def __init__(self, ui: UI) -> None:
        self._ui = ui
        # Replaced, never changed in place: another thread may draw it at the same time.
        self._running: dict[str, tuple[str, float]] = {}
        self._live: Live | None = None
        self._lock = threading.Lock()
        self._pretending: set[str] = set()
        self._checked = 0
        self.phases: list[dict[str, Any]] = []
        self.roles: list[dict[str, Any]] = []
        self.errors: list[Event] = []

    @contextmanager
    def following(self, path: Path) -> Iterator[None]:
        """Show the events that are appended to a file.

        Raises:
            WorkerFailed: The run failed because a worker failed; with the worker's message.
        """
        live = Live(
            get_renderable=self._bottom, console=self._ui.err, transient=True, refresh_per_second=8
        )
        shown = live if self._ui.err.is_terminal else nullcontext()
        try:
            with Follower(path, self.handle), shown as self._live:
                yield
        except GpubedError as error:
            if not self.errors:
                raise
            first = self.errors[0]
            raise WorkerFailed(first["message"], first["hint"], first["exit_code"]) from error

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the live display while a question is asked."""
        if (live := self._live) is None:
            yield
            return
        live.stop()
        try:
            yield
        finally:
            live.start(refresh=True)

    def handle(self, event: Event) -> None:
        """Show one event; ignore it if its fields are not as expected."""
        with self._lock, suppress(*_MALFORMED):
            if handler := getattr(self, f"_on_{event['what']}", None):
                handler(event)

    def _bottom(self) -> RenderableType:
        # Must not take `_lock`: rich draws while it holds its own lock, for which `handle` may
        # wait while it holds `_lock`.
        running, now = self._running.values(), time.monotonic()
        rows = [Spinner("dots", Text(f"{text}  {now - since:.0f} s")) for text, since in running]
        return Group(*rows)

    def _start(self, key: str, text: str) -> None:
        since = self._running[key][1] if key in self._running else time.monotonic()
        if self._live is None and key not in self._running:
            self._ui.mark("same", f"{text} …")
        self._running = {**self._running, key: (text, since)}

    def _end(self, key: str, sign: str, text: str, seconds: float | None) -> float:
        _, since = self._running.get(key, ("", time.monotonic()))
        self._running = {k: step for k, step in self._running.items() if k != key}
        took = time.monotonic() - since if seconds is None else seconds
        self._ui.mark(sign, f"{text}  {took:.1f} s")
        return took

    def _on_resource(self, event: Event) -> None:
        op, status = str(event["op"]), event["status"]
        kind = event["type"].rsplit(":", 1)[-1]
        if op in _QUIET or event["type"] == "pulumi:pulumi:Stack" or "providers" in event["type"]:
            return
        if (kind, op) == ("Volume", "delete"):
            return
        verbs = {**_VERBS, **_OF_VOLUMES} if kind == "Volume" else _VERBS
        doing, done = verbs.get(op, (op, op))
        label = f"{kind} {event['name']}"
        if status == "started":
            self._start(event["urn"] + op, f"{doing} {label}")
        elif status == "done":
            self._end(event["urn"] + op, _SIGN.get(op, op), f"{done} {label}", event["seconds"])
        elif status == "failed":
            sign, how = ("skip", "was cut off") if interruption.arrived() else ("fail", "failed")
            self._end(event["urn"] + op, sign, f"{doing} {label} {how}", event["seconds"])

    def _on_roles(self, event: Event) -> None:
        for line in status_view.due(event["roles"]):
            self._ui.mark("update", line)
        self.roles += event["roles"]

    def _on_phase(self, event: Event) -> None:
        name = event["phase"]
        if event["status"] == "started":
            self._start("phase", f"phase {name}")
        else:
            sign = "fail" if event["status"] == "failed" else "pass"
            seconds = self._end("phase", sign, f"phase {name}", event.get("seconds"))
            self.phases.append({"name": name, "seconds": round(seconds, 2)})

    def _on_task(self, event: Event) -> None:
        if self._live and event["phase"]:
            # A task of the playbook itself has no role.
            names = " · ".join(filter(None, (event["role"], event["task"])))
            self._start("phase", f"phase {event['phase']}: {names}")

    def _on_host(self, event: Event) -> None:
        if event["status"] in ("failed", "unreachable"):
            self._ui.mark("fail", f"{event['host']}: {event['task']}: {event['message']}")

    def _on_check(self, event: Event) -> None:
        if event["result"] == "fail":
            self._ui.mark("fail", f"{event['id']} {event['node']}: {event['reason']}")
        elif event["result"] == "simulated" and event["node"] not in self._pretending:
            self._pretending.add(event["node"])
            where = event["node"] or "the cluster"
            self._ui.mark("simulated", f"{where}: GPUs are simulated, no check of them can pass")
        else:
            self._checked += 1

    def _on_checking(self, event: Event) -> None:
        if self._live:
            self._start("phase", f"verifying: {event['subject']} ({self._checked} checked)")

    def _on_note(self, event: Event) -> None:
        self._ui.note(event["message"])

    def _on_error(self, event: Event) -> None:
        self.errors.append(event)

    def _on_log(self, event: Event) -> None:
        # A worker's error arrives a second time as a traceback, of use only for bugs.
        shown = any(error["message"] in event["message"] for error in self.errors)
        matters = event["severity"] in ("warning", "error")
        if matters and not shown and not interruption.arrived():
            self._ui.note(event["message"], whole=True)


def asking(ui: UI, display: Display, again: str, *, yes: bool) -> lost_state.Approve:
    """Return a function that asks for approval before a run deletes or replaces resources.

    Args:
        again: The command with the option that approves, for the error's hint.
        yes: Whether to approve without a question.
    """

    def approve(costs: Sequence[str]) -> None:
        with display.paused():
            for cost in costs:
                ui.mark("delete", cost)
            confirmed = ui.confirm("Go on?", yes=yes)
        if not confirmed:
            raise UsageError(f"not confirmed, so nothing was changed: {'; '.join(costs)}", again)

    return approve

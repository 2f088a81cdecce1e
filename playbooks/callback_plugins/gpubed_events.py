"""Tell gpubed what happens in a run: a JSON line per event, in a file on the controller.

Nodes write to Ansible's output (mitogen hands on what its children log), never to this
file: of a node's words, it holds only what a person reads of a failure.
`gpubed.configuration.events` reads it. Writes nothing where gpubed named no file, as when a
playbook is run by hand.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Mapping
from typing import Any

from ansible.plugins.callback import CallbackBase

_FILE = "GPUBED_ANSIBLE_EVENTS"
_SAID, _LINES, _NAME = 2000, 10, 200  # characters, lines, characters
# Ansible's words, without the reason, where a program cannot be started.
_NOT_STARTED = "Error executing command"
_MOST = 256 * 2**20  # bytes: a thousand nodes write a fifth of it


class CallbackModule(CallbackBase):
    """Writes the events."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "notification"
    CALLBACK_NAME = "gpubed_events"

    def __init__(self) -> None:
        super().__init__()
        # Removed, so that tasks on the controller and lookups do not see it.
        path = os.environ.pop(_FILE, None)
        self.disabled = path is None
        self._file = path and os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._room = _MOST
        self._since: dict[tuple[str, str], float] = {}

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """A phase begins."""
        self._tell("play", play=play.get_name()[:_NAME])

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        """A task begins on all nodes."""
        self._tell("task", **_named(task))

    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """A handler is a task, too."""
        self._tell("task", **_named(task))

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """A task begins on a node."""
        self._since[host.get_name(), task._uuid] = time.monotonic()

    def v2_runner_on_ok(self, result: Any) -> None:
        """A task is done."""
        self._result("ok", result)

    def v2_runner_on_skipped(self, result: Any) -> None:
        """A task need not be done."""
        self._result("skipped", result)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """A task failed."""
        self._result("ignored" if ignore_errors else "failed", result)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """A node was not reached."""
        self._result("unreachable", result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """The run is at its end."""
        self._tell("stats", changed={host: stats.changed.get(host, 0) for host in stats.processed})

    def _result(self, event: str, result: Any) -> None:
        host = result._host.get_name()
        since = self._since.pop((host, result._task._uuid), None)
        self._tell(
            event,
            **_named(result._task),
            host=host,
            seconds=time.monotonic() - since if since else 0.0,
            changed=event == "ok" and result.is_changed(),
            reason=_reason(result._result) if event in ("failed", "unreachable") else None,
        )

    def _tell(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, **fields}).encode() + b"\n"
        self._room -= len(line)
        if self._file and self._room >= 0:
            os.write(self._file, line)


def _named(task: Any) -> dict[str, str | None]:
    role = task._role and task._role.get_name()[:_NAME]
    return {"role": role, "task": (task.name or task.action)[:_NAME]}


def _reason(answer: Mapping[str, Any]) -> str:
    """Return the reason of a failure, in few lines."""
    if "censored" in answer:
        return "the output is hidden because it may hold a secret"
    for item in answer.get("results") or ():
        if isinstance(item, Mapping) and item.get("failed"):
            return _reason(item)
    said = answer.get("stderr") or answer.get("module_stderr") or answer.get("stdout") or ""
    message = str(answer.get("msg") or "")[:_SAID] or json.dumps(answer, default=str)[:500]
    code, words = answer.get("rc"), answer.get("cmd")
    if message.startswith(_NOT_STARTED) and isinstance(code, int) and words:
        program = words[0] if isinstance(words, list) else f"{words} ".split(" ")[0]
        why = os.strerror(code) if code in errno.errorcode else f"error {str(code)[:9]}"
        message = f"{str(program)[:_NAME]} cannot be run: {why}"
    tail = "\n".join(str(said)[-_SAID:].strip().splitlines()[-_LINES:])
    return f"{message}\n{tail}".strip() if tail and tail not in message else message

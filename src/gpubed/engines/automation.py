"""Runs stack operations with the real Pulumi CLI, through Pulumi's Automation API."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pulumi import automation

from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.engines.embedded import EventSink, LogEvent, ResourceEvent, Result, child
from gpubed.engines.embedded.cipher import WRONG_KEY_HINT
from gpubed.engines.embedded.events import last_words

Verb = Literal["preview", "up", "refresh", "destroy"]
# Without a limit, cloud plugins wait for ever for a service that accepts connections but never
# answers. Pulumi's OpenStack plugin waits as long for a server.
SILENCE_S = 1800.0
REMARK_S = 60.0  # silence after which a warning is shown
_DYNAMIC = "pulumi-python:"  # dynamic providers have their own limits and progress
_WRONG_KEY = "incorrect passphrase"
# The CLI's last line, whatever failed.
_SUMMARIES = ("preview failed", "update failed", "refresh failed", "destroy failed")
# Go's exit code of a process that a signal ended.
_SIGNALLED = "an unhandled error occurred: program exited with non-zero exit code: -1"


def operate(
    verb: Verb,
    stack: str,
    root: Path,
    variables: Mapping[str, str],
    sink: EventSink,
    **options: bool,
) -> Result:
    """Run an operation of the CLI on a stack; the result has no outputs.

    `root` is the folder of Pulumi.yaml, `variables` name the CLI's state and passphrase, `options`
    are those of the Automation API's method.

    Raises `PrerequisiteMissing` if the SDK does not go with the CLI's version, `GpubedError` if the
    CLI failed, or was silent for half an hour.
    """
    # Of the environment, the CLI gets only what workers need: GPUBED_… and this Python.
    kept = {key: value for key, value in os.environ.items() if key.startswith("GPUBED_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    workspace = automation.LocalWorkspaceOptions(
        work_dir=str(root), env_vars={**kept, "PATH": path, "PYTHONFAULTHANDLER": "1", **variables}
    )
    started, run = time.monotonic(), _Run(sink, verb == "preview")
    with run.translated():
        selected = automation.create_or_select_stack(
            stack_name=stack, work_dir=str(root), opts=workspace
        )
        getattr(selected, verb)(on_event=run.handle, on_output=lambda _line: None, **options)
    changes = Counter(step.op for step in run.steps)
    return Result(changes, tuple(run.steps), {}, time.monotonic() - started)


class _Run:
    """Turns the CLI's events and errors into gpubed's; ends a CLI that is silent too long."""

    def __init__(self, sink: EventSink, planning: bool) -> None:
        self._sink, self._planning = sink, planning
        self._since: dict[tuple[str, str], float] = {}
        self._pending: dict[str, ResourceEvent] = {}
        self._heard = time.monotonic()
        self._over = threading.Event()
        self._silent = ""
        self.steps: list[ResourceEvent] = []
        self._errors: list[str] = []

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Watch the CLI while the body runs; translate its error into a `GpubedError`."""
        threading.Thread(target=self._watch, name="silence", daemon=True).start()
        try:
            yield
        except automation.errors.InvalidVersionError as error:
            why, cli = str(error).split(". ")[0], shutil.which("pulumi")
            raise PrerequisiteMissing(
                f"the Pulumi CLI at {cli} does not go with Pulumi's SDK here: {why}",
                "gpubed doctor --fix installs one that does: put that first on PATH",
            ) from error
        except automation.errors.CommandError as error:
            text = str(error)
            if _WRONG_KEY in text:
                raise GpubedError(f"Pulumi: {_WRONG_KEY}", WRONG_KEY_HINT) from error
            if self._silent:
                raise GpubedError(
                    f"ended, since the testbed is silent: {self._silent}",
                    "look at its status page, or ask its operators; then run the same command "
                    "again: it looks at what was pending, and goes on",
                ) from error
            if self._errors == [_SIGNALLED]:
                raise GpubedError(
                    "a signal ended the cluster's Pulumi program: it crashed, which the log shows "
                    "as `Fatal Python error`, or was killed",
                    "if this machine lacks memory (dmesg | grep 'Killed process'), give it more; "
                    "then run the same command again: it goes on",
                ) from error
            _, found, last = text.rpartition("error:")
            message = "\n".join(self._errors) or (last if found else text[-500:]).strip()
            raise GpubedError(message, "the whole output is in the log") from error
        finally:
            self._over.set()

    def handle(self, event: automation.EngineEvent) -> None:
        if pre := event.resource_pre_event:
            self._step(pre.metadata, "planned" if self._planning else "started")
        elif done := event.res_outputs_event:
            if not self._planning:
                self._step(done.metadata, "done")
        elif failed := event.res_op_failed_event:
            self._step(failed.metadata, "failed")
        elif (log := event.diagnostic_event) and not log.ephemeral and log.severity != "debug":
            # Debug messages of plugins hold everything they send, secrets included.
            message = log.message.strip()
            if log.severity == "error" and message not in (*self._errors, *_SUMMARIES):
                self._errors.append(last_words(message))
            self._sink(LogEvent(log.severity, message, log.urn or None))

    def _step(self, metadata: automation.StepEventMetadata, status: str) -> None:
        if "::pulumi:providers:" in metadata.urn and metadata.urn.endswith("::default"):
            return  # this step only records the stack's configuration
        key, now = (str(metadata.urn), str(metadata.op)), time.monotonic()
        since, self._heard = self._since.setdefault(key, now), now
        event = ResourceEvent(
            op=str(getattr(metadata.op, "value", metadata.op)),
            status=status,
            urn=metadata.urn,
            type=metadata.type,
            name=metadata.urn.rsplit("::", 1)[-1],
            seconds=now - since if status in ("done", "failed") else None,
            # May be empty: only the driver knows reasons such as a failed node.
            why=tuple(metadata.diffs or metadata.keys or ()),
        )
        if status == "started":
            self._pending[event.urn] = event
        else:
            self._pending.pop(event.urn, None)
            self.steps.append(event)
        self._sink(event)

    def _watch(self) -> None:
        while not self._over.wait(REMARK_S):
            pending, silent = list(self._pending.values()), time.monotonic() - self._heard
            if silent < REMARK_S or any(step.type.startswith(_DYNAMIC) for step in pending):
                continue
            steps = ", ".join(f"{s.op} {s.type.rsplit(':', 1)[-1]} {s.name}" for s in pending)
            words = f"no answer for {silent:.0f} s; pending: {steps or 'the first answer'}"
            if silent >= SILENCE_S:
                self._silent = words
                child.end_descendants()
                return
            self._sink(LogEvent("warning", words, None))

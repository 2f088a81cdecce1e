"""Pulumi's Automation API: the same operations as the embedded engine's, by the real CLI."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pulumi import automation

from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.engines.embedded import EventSink, LogEvent, ResourceEvent, Result, lifeline
from gpubed.engines.embedded.cipher import OPENED_BY
from gpubed.engines.embedded.failures import last_words
from gpubed.engines.silence import Silence

Verb = Literal["preview", "up", "refresh", "destroy"]
_SEALED_OTHERWISE = "incorrect passphrase"
# What the CLI says once more at the end, whatever failed.
_SUMMARIES = ("preview failed", "update failed", "refresh failed", "destroy failed")


def operate(
    verb: Verb,
    stack: str,
    root: Path,
    variables: Mapping[str, str],
    sink: EventSink,
    **options: bool,
) -> Result:
    """Let the CLI work on a stack; its outputs are left out of the result.

    Args:
        verb: What to do.
        stack: The stack's name; it is made where there is none.
        root: The folder of Pulumi.yaml.
        variables: What the CLI finds its state and its passphrase by.
        sink: Hears of every step.
        options: Further arguments of the Automation API's method.

    Raises:
        PrerequisiteMissing: The CLI has no version that the SDK works with.
        GpubedError: What the CLI said last, when it failed.
    """
    workspace = automation.LocalWorkspaceOptions(
        work_dir=str(root), env_vars={**_inherited(), **variables}
    )
    silence = Silence(sink, _interrupt)
    started, translator = time.monotonic(), _Translator(sink, verb == "preview", silence)
    with _pulumi_errors(translator), silence:
        there = automation.create_or_select_stack(
            stack_name=stack, work_dir=str(root), opts=workspace
        )
        getattr(there, verb)(on_event=translator.handle, on_output=lambda _line: None, **options)
    return Result(
        changes=translator.changes(),
        steps=tuple(translator.steps),
        outputs={},
        seconds=time.monotonic() - started,
    )


def _inherited() -> dict[str, str]:
    """Hand on what workers need; the CLI gets its own copy of the environment."""
    kept = {key: value for key, value in os.environ.items() if key.startswith("GPUBED_")}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def _interrupt() -> None:
    """End the CLI and its plugins: what was pending is in the state, and looked at next time."""
    lifeline.end([pid for pid in lifeline.descendants(os.getpid()) if pid != os.getpid()])


@contextmanager
def _pulumi_errors(told: _Translator) -> Iterator[None]:
    """Turn the CLI's failure into ours: all that it reported, or else its last words."""
    try:
        yield
    except automation.errors.InvalidVersionError as error:
        why = str(error).split(". ")[0]
        raise PrerequisiteMissing(
            f"the Pulumi CLI at {shutil.which('pulumi')} does not go with Pulumi's SDK here: {why}",
            "gpubed doctor --fix installs one that does: put that first on PATH",
        ) from error
    except automation.errors.CommandError as error:
        text = str(error)
        if _SEALED_OTHERWISE in text:
            raise GpubedError(f"Pulumi: {_SEALED_OTHERWISE}", OPENED_BY) from error
        if reason := told.silence.reason:
            raise GpubedError(
                f"ended, since the testbed is silent: {reason}",
                "look at its status page, or ask its operators; then run the same command "
                "again: it looks at what was pending, and goes on",
            ) from error
        message = "\n".join(told.errors) or _last_diagnostic(text)
        raise GpubedError(message, "the whole output is in the log") from error


def _last_diagnostic(text: str) -> str:
    _, found, last = text.rpartition("error:")
    return last.strip() if found else text.strip()[-500:]


class _Translator:
    """Turns the CLI's engine events into ours."""

    def __init__(self, sink: EventSink, planning: bool, silence: Silence) -> None:
        self._sink = sink
        self.silence = silence
        self._planning = planning
        self._since: dict[tuple[str, str], float] = {}
        self.steps: list[ResourceEvent] = []
        self.errors: list[str] = []

    def changes(self) -> dict[str, int]:
        counted: dict[str, int] = {}
        for step in self.steps:
            counted[step.op] = counted.get(step.op, 0) + 1
        return counted

    def handle(self, event: automation.EngineEvent) -> None:
        if pre := event.resource_pre_event:
            self._step(pre.metadata, "planned" if self._planning else "started")
        elif done := event.res_outputs_event:
            if not self._planning:
                self._step(done.metadata, "done")
        elif failed := event.res_op_failed_event:
            self._step(failed.metadata, "failed")
        elif (said := event.diagnostic_event) and not said.ephemeral and said.severity != "debug":
            # Plugins tell all they send when debugging, secrets among it.
            message = said.message.strip()
            if said.severity == "error" and message not in (*self.errors, *_SUMMARIES):
                self.errors.append(last_words(message))
            self._sink(LogEvent(said.severity, message, said.urn or None))

    def _step(self, metadata: automation.StepEventMetadata, status: str) -> None:
        if "::pulumi:providers:" in metadata.urn and metadata.urn.endswith("::default"):
            return  # it only records the stack's configuration
        key, now = (str(metadata.urn), str(metadata.op)), time.monotonic()
        since = self._since.setdefault(key, now)
        event = ResourceEvent(
            op=str(getattr(metadata.op, "value", metadata.op)),
            status=status,
            urn=metadata.urn,
            type=metadata.type,
            name=metadata.urn.rsplit("::", 1)[-1],
            seconds=now - since if status in ("done", "failed") else None,
            # Of what only its driver knows, as that a node had failed, no input is another.
            why=tuple(metadata.diffs or metadata.keys or ()),
        )
        self.silence.heard(event)
        if status != "started":
            self.steps.append(event)
        self._sink(event)

"""Drives a cluster's Pulumi stack with whichever engine is there.

Both engines run the same program on the same state: the real CLI through
Pulumi's Automation API where it is on PATH, the embedded engine elsewhere.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pulumi import automation

from gpubed import secret
from gpubed.engine import Engine, LogEvent, ResourceEvent, Result
from gpubed.errors import GpubedError, PrerequisiteMissing, UsageError
from gpubed.paths import ClusterPaths, Project

EngineName = Literal["cli", "embedded"]
Sink = Callable[[ResourceEvent | LogEvent], None]
_CLI_FIX = "gpubed doctor --fix"


def choose(wanted: str | None) -> EngineName:
    """Return the engine to use: what was asked for, else the CLI where it is on PATH.

    Raises:
        UsageError: There is no such engine.
        PrerequisiteMissing: The CLI was asked for and is not there.
    """
    if wanted not in (None, "cli", "embedded"):
        raise UsageError(f"there is no engine {wanted!r}", "--engine cli or --engine embedded")
    present = shutil.which("pulumi") is not None
    if wanted == "cli" and not present:
        raise PrerequisiteMissing("the Pulumi CLI is not on PATH", _CLI_FIX)
    if wanted == "embedded" or not present:
        return "embedded"
    return "cli"


def passphrase_file(project: Project) -> Path:
    """Return the file with the passphrase of the project's stacks, made when missing."""
    path = project.pulumi / "passphrase"
    if not path.exists():
        secret.write(path, secrets.token_urlsafe(32).encode())
    return path


def environment(project: Project) -> dict[str, str]:
    """Return the variables with which plain `pulumi` works on the project's stacks."""
    return {
        "PULUMI_BACKEND_URL": f"file://{project.pulumi}",
        "PULUMI_CONFIG_PASSPHRASE_FILE": str(passphrase_file(project)),
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        # The interpreter that gpubed runs in has what the program imports.
        "PULUMI_PYTHON_CMD": sys.executable,
        "GPUBED_ROOT": str(project.root),
    }


@dataclass(frozen=True)
class Stack:
    """The stack of one cluster."""

    cluster: ClusterPaths
    engine: EngineName

    def init(self) -> None:
        """Make an empty stack where there is none, for the plain CLI to find."""
        (self.cluster.project.pulumi / "config").mkdir(exist_ok=True)
        self._embedded().init()

    def preview(self, sink: Sink) -> Result:
        """Compute what `up` would do."""
        if self.engine == "embedded":
            return self._embedded().preview(sink)
        return self._cli("preview", sink)

    def up(self, sink: Sink) -> Result:
        """Make the cluster what its specification says."""
        if self.engine == "embedded":
            return self._embedded().up(sink)
        return self._cli("up", sink)

    def refresh(self, sink: Sink) -> Result:
        """Read every resource from the testbed; what is gone leaves the state.

        Creations that an earlier run was killed in are forgotten: the drivers adopt
        what such a creation left behind.
        """
        if self.engine == "embedded":
            return self._embedded().refresh(sink, clear_pending_creates=True)
        return self._cli("refresh", sink, clear_pending_creates=True)

    def interrupted(self) -> bool:
        """Say whether an earlier run was killed while it created something."""
        return bool(self.export().get("deployment", {}).get("pending_operations"))

    def destroy(self, sink: Sink) -> Result:
        """Remove every resource, then the stack itself."""
        embedded = self._embedded()
        result = embedded.destroy(sink) if self.engine == "embedded" else self._cli("destroy", sink)
        embedded.remove()
        return result

    def outputs(self) -> Mapping[str, Any]:
        """Return the outputs of the last run; empty when there was none."""
        return self._embedded().outputs()

    def export(self) -> dict[str, Any]:
        """Return the state, as `pulumi stack export` prints it."""
        return self._embedded().export()

    def _embedded(self) -> Engine:
        project = self.cluster.project
        return Engine(
            project.root,
            self.cluster.name,
            backend_dir=project.pulumi,
            passphrase_file=passphrase_file(project),
            worker_environment=self._worker_environment(),
        )

    def _worker_environment(self) -> dict[str, str]:
        return {"GPUBED_ROOT": str(self.cluster.project.root)}

    def _cli(
        self, verb: Literal["preview", "up", "refresh", "destroy"], sink: Sink, **options: bool
    ) -> Result:
        project = self.cluster.project
        workspace = automation.LocalWorkspaceOptions(
            work_dir=str(project.root), env_vars={**_inherited(), **environment(project)}
        )
        started, translator = time.monotonic(), _Translator(sink, verb == "preview")
        if verb != "preview":
            self._embedded().require_free()
        with _pulumi_errors():
            (project.pulumi / "config").mkdir(parents=True, exist_ok=True)
            stack = automation.create_or_select_stack(
                stack_name=self.cluster.name, work_dir=str(project.root), opts=workspace
            )
            getattr(stack, verb)(
                on_event=translator.handle, on_output=lambda _line: None, **options
            )
        return Result(
            changes=translator.changes(),
            steps=tuple(translator.steps),
            outputs={} if verb == "destroy" else self.outputs(),
            seconds=time.monotonic() - started,
        )


def _inherited() -> dict[str, str]:
    """Hand on what workers need; the CLI gets its own copy of the environment."""
    kept = {key: value for key, value in os.environ.items() if key.startswith("GPUBED_")}
    return {**kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


@contextmanager
def _pulumi_errors() -> Iterator[None]:
    try:
        yield
    except automation.errors.CommandError as error:
        raise GpubedError(_last_diagnostic(str(error)), "the whole output is in the log") from error


def _last_diagnostic(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if "error:" in line]
    return lines[-1].split("error:", 1)[1].strip() if lines else text.strip()[-500:]


class _Translator:
    """Turns the CLI's engine events into ours."""

    def __init__(self, sink: Sink, planning: bool) -> None:
        self._sink = sink
        self._planning = planning
        self._since: dict[tuple[str, str], float] = {}
        self.steps: list[ResourceEvent] = []

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
            self._sink(LogEvent(said.severity, said.message.strip(), said.urn or None))

    def _step(self, metadata: automation.StepEventMetadata, status: str) -> None:
        key, now = (str(metadata.urn), str(metadata.op)), time.monotonic()
        since = self._since.setdefault(key, now)
        event = ResourceEvent(
            op=str(getattr(metadata.op, "value", metadata.op)),
            status=status,
            urn=metadata.urn,
            type=metadata.type,
            name=metadata.urn.rsplit("::", 1)[-1],
            seconds=now - since if status in ("done", "failed") else None,
            why=tuple(metadata.diffs or ()),
        )
        if status != "started":
            self.steps.append(event)
        self._sink(event)

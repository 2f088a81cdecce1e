"""The embedded engine's interface: one object per stack, one method per operation."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from gpubed.core.errors import Refused
from gpubed.engines.embedded import locks
from gpubed.engines.embedded.backend import StackFile
from gpubed.engines.embedded.events import EventSink, Reporter, Result, discard
from gpubed.engines.embedded.operation import Operation
from gpubed.engines.embedded.project import Project
from gpubed.engines.embedded.stack import Stack
from gpubed.engines.embedded.values import Properties, reveal


class Engine:
    """Runs a Pulumi Python program without the Pulumi CLI.

    It keeps the CLI's files, so that a stack can move between the two at any time. A first
    KeyboardInterrupt lets steps in flight finish; a second one ends at once. Methods that change
    the stack raise `Locked` while another run holds it, and `StepFailed` for failed steps; finished
    ones are saved.

    Args:
        project_dir: The folder of Pulumi.yaml.
        stack: The stack's name.
        backend_dir: The folder that contains `.pulumi/`.
        passphrase_file: The file with the stack's passphrase.
        parallel: How many steps may run at once; by default four per processor.
        worker_environment: Extra variables for the program and the providers.
    """

    def __init__(
        self,
        project_dir: Path,
        stack: str,
        *,
        backend_dir: Path,
        passphrase_file: Path,
        parallel: int | None = None,
        worker_environment: Mapping[str, str] | None = None,
    ) -> None:
        project = Project.load(project_dir)
        self._file = StackFile(backend_dir, project.name, stack)
        self._stack = Stack(project, stack, self._file, passphrase_file)
        self._parallel = parallel or 4 * (os.cpu_count() or 1)
        self._environment = dict(worker_environment or {})

    def init(self) -> None:
        """Create an empty stack if missing, like `pulumi stack init`."""
        if not self._exists():
            with self._locked():
                self._stack.create()

    def require_free(self) -> None:
        """Remove the locks of killed runs, the CLI's too; raise `Locked` if a run holds one."""
        locks.require_free(self._file.locks)

    def preview(self, on_event: EventSink = discard, *, refresh: bool = False) -> Result:
        """Compute what `up` would do; with `refresh`, read every resource first."""

        def work(operation: Operation) -> Properties:
            if refresh:
                operation.look()
            return operation.deploy()

        return self._operate(on_event, work, preview=True)

    def up(self, on_event: EventSink = discard) -> Result:
        """Make the stack what the program says; create the stack if missing."""
        with self._locked():
            self._stack.create()
            return self._operate(on_event, Operation.deploy, save_salt=True)

    def refresh(
        self, on_event: EventSink = discard, *, clear_pending_creates: bool = False
    ) -> Result:
        """Read every resource into the state; change no resource.

        The result counts `same`, `update` (it differs) and `delete` (it has gone).
        `clear_pending_creates` forgets creations during which an earlier run was killed.
        """
        if not self._exists():
            return Result({}, (), {}, 0.0)
        with self._locked():
            return self._operate(
                on_event, lambda operation: operation.refresh(clear=clear_pending_creates)
            )

    def destroy(self, on_event: EventSink = discard) -> Result:
        """Delete every resource of the stack; the stack itself stays."""
        if not self._exists():
            return Result({}, (), {}, 0.0)
        with self._locked():
            return self._operate(on_event, Operation.destroy)

    def outputs(self, *, show_secrets: bool = False) -> dict[str, Any]:
        """Return the outputs of the last state; empty if there is none."""
        return dict(reveal(self._stack.outputs(), show_secrets=show_secrets))

    def export(self) -> dict[str, Any]:
        """Return the state as `pulumi stack export` does, secrets encrypted."""
        return {"version": 3, "deployment": self._stack.latest()}

    def edit(self, change: Callable[[list[Properties]], list[Properties]]) -> None:
        """Change the recorded resources without a run, like `pulumi stack import`."""
        if self._exists():
            with self._locked():
                self._file.edit(change)

    def remove(self) -> None:
        """Remove a stack without resources, if it exists, like `pulumi stack rm`."""
        if self._exists():
            with self._locked():
                if self._stack.latest().get("resources"):
                    raise Refused(
                        f"the stack {self._stack.name} still has resources", "destroy them first"
                    )
                self._file.remove()
        self._stack.config_file.unlink(missing_ok=True)

    def _exists(self) -> bool:
        return self._file.path.exists()

    def _locked(self) -> AbstractContextManager[None]:
        return locks.hold(self._file.locks)

    def _operate(
        self,
        on_event: EventSink,
        work: Callable[[Operation], Properties | None],
        *,
        preview: bool = False,
        save_salt: bool = False,
    ) -> Result:
        begun, reporter = time.monotonic(), Reporter(on_event, preview=preview)
        opened = self._stack.open(save_salt=save_salt)
        outputs = work(
            Operation(self._stack, opened, reporter, preview, self._parallel, self._environment)
        )
        shown = reveal(outputs or {}, show_secrets=False)
        seconds = time.monotonic() - begun
        return Result(dict(reporter.changes), tuple(reporter.steps), shown, seconds)

"""The embedded engine's front: one object per stack, one method per verb."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpubed.core.errors import Refused
from gpubed.engines.embedded import locks
from gpubed.engines.embedded.backend import StackFile
from gpubed.engines.embedded.events import EventSink, discard
from gpubed.engines.embedded.operation import Operation
from gpubed.engines.embedded.project import Project
from gpubed.engines.embedded.reporter import Reporter
from gpubed.engines.embedded.result import Result
from gpubed.engines.embedded.stack import Stack
from gpubed.engines.embedded.values import Properties, reveal


class Engine:
    """Runs a Pulumi Python program without the Pulumi CLI.

    It keeps the CLI's files, so that a stack can move between the two at any time.
    Interrupting the caller's thread lets steps in flight finish; a second
    interruption ends at once.

    Args:
        project_dir: The folder of Pulumi.yaml.
        stack: The stack's name.
        backend_dir: The folder that contains `.pulumi/`.
        passphrase_file: The file with the stack's passphrase.
        parallel: How many steps may run at once; by default four per processor.
        worker_environment: Extra variables for the program and the providers.

    Raises:
        UsageError: There is no Python project.
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
        file = StackFile(backend_dir, project.name, stack)
        self._stack = Stack(project, stack, file, passphrase_file)
        self._parallel = parallel or 4 * (os.cpu_count() or 1)
        self._environment = dict(worker_environment or {})

    def init(self) -> None:
        """Makes an empty stack, like `pulumi stack init`; an existing one is fine.

        Raises:
            Locked: Another run holds the stack.
        """
        if not self._stack.exists():
            with self._locked():
                self._stack.create()

    def require_free(self) -> None:
        """Clears what killed runs left locked, the CLI's too, which would wait for them.

        Raises:
            Locked: Another run holds the stack.
        """
        locks.require_free(self._stack.file.locks)

    def preview(
        self,
        on_event: EventSink = discard,
        *,
        refresh: bool = False,
        replace: Sequence[str] = (),
    ) -> Result:
        """Tells what `up` would do; changes nothing.

        Args:
            on_event: Hears of every step.
            refresh: Start from what is really there, instead of the last state.
            replace: As in `up`.

        Raises:
            GpubedError: The program fails, or asks for what cannot be done.
        """

        def work(operation: Operation) -> Properties:
            if refresh:
                operation.look()
            return operation.deploy()

        return self._operate(on_event, work, preview=True, replace=replace)

    def up(self, on_event: EventSink = discard, *, replace: Sequence[str] = ()) -> Result:
        """Makes the stack what the program says; creates the stack if needed.

        Args:
            on_event: Hears of every step.
            replace: URNs of what is replaced whether it changed or not, like
                `pulumi up --replace`; what the state calls tainted is, too.

        Raises:
            StepFailed: A step failed; what finished is saved.
            Locked: Another run holds the stack.
        """
        with self._locked():
            self._stack.create()
            return self._operate(on_event, Operation.deploy, save_salt=True, replace=replace)

    def refresh(
        self, on_event: EventSink = discard, *, clear_pending_creates: bool = False
    ) -> Result:
        """Makes the state say what is really there; touches no resource.

        The result counts `same`, `update` (it differs) and `delete` (it has gone).

        Args:
            on_event: Hears of every step.
            clear_pending_creates: Forget creations that an earlier run was killed in;
                for users who have made sure that nothing is left of them.

        Raises:
            StepFailed: A resource could not be read.
            Locked: Another run holds the stack.
        """
        if not self._stack.exists():
            return Result({}, (), {}, 0.0)
        with self._locked():
            return self._operate(
                on_event, lambda operation: operation.refresh(clear=clear_pending_creates)
            )

    def destroy(self, on_event: EventSink = discard) -> Result:
        """Deletes every resource of the stack; the stack itself stays.

        Raises:
            StepFailed: A resource could not be deleted or is protected.
            Locked: Another run holds the stack.
        """
        if not self._stack.exists():
            return Result({}, (), {}, 0.0)
        with self._locked():
            return self._operate(on_event, Operation.destroy)

    def outputs(self, *, show_secrets: bool = False) -> dict[str, Any]:
        """Returns the outputs of the last state; empty when there is none."""
        return dict(reveal(self._stack.outputs(), show_secrets=show_secrets))

    def export(self) -> dict[str, Any]:
        """Returns the state as `pulumi stack export` does, secrets sealed."""
        return {"version": 3, "deployment": self._stack.latest()}

    def edit(self, change: Callable[[list[Properties]], list[Properties]]) -> None:
        """Changes the recorded resources without a run, like `pulumi stack import`.

        Raises:
            Locked: Another run holds the stack.
        """
        if self._stack.exists():
            with self._locked():
                self._stack.file.edit(change)

    def remove(self) -> None:
        """Forgets the stack, like `pulumi stack rm`; a missing one is fine.

        Raises:
            Refused: Resources remain.
            Locked: Another run holds the stack.
        """
        if self._stack.exists():
            with self._locked():
                if self._stack.latest().get("resources"):
                    raise Refused(
                        f"the stack {self._stack.name} still has resources", "destroy them first"
                    )
                self._stack.file.remove()
        self._stack.config_file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with locks.hold(self._stack.file.locks):
            yield

    def _operate(
        self,
        on_event: EventSink,
        work: Callable[[Operation], Properties | None],
        *,
        preview: bool = False,
        save_salt: bool = False,
        replace: Sequence[str] = (),
    ) -> Result:
        begun = time.monotonic()
        reporter = Reporter(on_event, preview=preview)
        opened = self._stack.open(save_salt=save_salt)
        outputs = work(
            Operation(
                self._stack,
                opened,
                reporter,
                preview,
                self._parallel,
                self._environment,
                replace,
            )
        )
        return Result(
            dict(reporter.changes),
            tuple(reporter.steps),
            reveal(outputs or {}, show_secrets=False),
            time.monotonic() - begun,
        )

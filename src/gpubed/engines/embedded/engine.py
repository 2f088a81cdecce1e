"""The embedded engine's interface: one object per stack, one method per operation."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpubed.core.errors import Refused
from gpubed.engines.embedded import steps
from gpubed.engines.embedded.backend import StackFile
from gpubed.engines.embedded.checkpoint import Checkpoint
from gpubed.engines.embedded.child import Child
from gpubed.engines.embedded.cipher import PassphraseCipher
from gpubed.engines.embedded.events import (
    EventSink,
    ProgramFailed,
    Reporter,
    Result,
    StepFailed,
    discard,
    last_words,
)
from gpubed.engines.embedded.monitor import Monitor
from gpubed.engines.embedded.provider import Provider
from gpubed.engines.embedded.registration import Registrar
from gpubed.engines.embedded.run import Journal, Run
from gpubed.engines.embedded.stack import Project, Stack
from gpubed.engines.embedded.state import STACK_TYPE
from gpubed.engines.embedded.values import Properties, reveal

_GRACE_SECONDS = 3.0  # for steps in flight, once the run is interrupted


class Engine:
    """Runs a Pulumi Python program without the Pulumi CLI.

    The engine keeps the CLI's files, so that a stack can change between the two at any time. A
    first KeyboardInterrupt lets steps in flight finish, a second one ends them at once.

    Methods that change the stack raise `Locked` while another run holds it, and `StepFailed` if
    steps failed; finished steps are saved.

    Args:
        project_dir: The folder of Pulumi.yaml.
        backend_dir: The folder of `.pulumi/`.
        parallel: How many steps may run at once, by default four per processor.
        worker_environment: Variables for the program and the providers.
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
        self.stack = Stack(project, stack, self._file, passphrase_file)
        self.parallel = parallel or 4 * (os.cpu_count() or 1)
        self.environment = dict(worker_environment or {})
        self.require_free = self._file.require_free

    def init(self) -> None:
        """Create an empty stack if missing, like `pulumi stack init`."""
        if not self._file.path.exists():
            with self._file.locked():
                self.stack.create()

    def preview(self, on_event: EventSink = discard, *, refresh: bool = False) -> Result:
        """Compute what `up` would do; with `refresh`, read every resource first."""

        def work(operation: _Operation) -> Properties:
            if refresh:
                operation.read_resources()
            return operation.deploy()

        return self._operate(on_event, work, preview=True)

    def up(self, on_event: EventSink = discard) -> Result:
        """Create, update and delete resources as the program declares; create a missing stack."""
        with self._file.locked():
            self.stack.create()
            return self._operate(on_event, _Operation.deploy, save_salt=True)

    def refresh(
        self, on_event: EventSink = discard, *, clear_pending_creates: bool = False
    ) -> Result:
        """Read every resource into the state; change no resource.

        The result counts `same`, `update` (it differs) and `delete` (it has gone).
        `clear_pending_creates` forgets creations during which an earlier run was killed.
        """
        return self._without_program(on_event, lambda one: one.refresh(clear=clear_pending_creates))

    def destroy(self, on_event: EventSink = discard) -> Result:
        """Delete every resource of the stack; the stack itself stays."""
        return self._without_program(on_event, _Operation.destroy)

    def outputs(self, *, show_secrets: bool = False) -> dict[str, Any]:
        """Return the outputs of the last state; empty if there is none."""
        return dict(reveal(self.stack.outputs(), show_secrets=show_secrets))

    def export(self) -> dict[str, Any]:
        """Return the state as `pulumi stack export` does, secrets encrypted."""
        return {"version": 3, "deployment": self.stack.latest()}

    def edit(self, change: Callable[[list[Properties]], list[Properties]]) -> None:
        """Change the recorded resources without a run, like `pulumi stack import`."""
        if self._file.path.exists():
            with self._file.locked():
                self._file.edit(change)

    def remove(self) -> None:
        """Remove a stack without resources, if it exists, like `pulumi stack rm`."""
        if self._file.path.exists():
            with self._file.locked():
                if self.stack.latest().get("resources"):
                    raise Refused(
                        f"the stack {self.stack.name} still has resources", "destroy them first"
                    )
                self._file.remove()
        self.stack.config_file.unlink(missing_ok=True)

    def _without_program(
        self, on_event: EventSink, work: Callable[[_Operation], Properties | None]
    ) -> Result:
        if not self._file.path.exists():
            return Result({}, (), {}, 0.0)
        with self._file.locked():
            return self._operate(on_event, work)

    def _operate(
        self,
        on_event: EventSink,
        work: Callable[[_Operation], Properties | None],
        *,
        preview: bool = False,
        save_salt: bool = False,
    ) -> Result:
        begun, reporter = time.monotonic(), Reporter(on_event, preview=preview)
        checkpoint, cipher = self.stack.open(save_salt=save_salt)
        outputs = work(_Operation(self, checkpoint, cipher, reporter, preview))
        shown, seconds = reveal(outputs or {}, show_secrets=False), time.monotonic() - begun
        return Result(dict(reporter.changes), tuple(reporter.steps), shown, seconds)


@dataclass(frozen=True)
class _Operation:
    """An operation on an open stack; a preview changes and saves nothing."""

    engine: Engine
    checkpoint: Checkpoint
    cipher: PassphraseCipher
    reporter: Reporter
    preview: bool

    def deploy(self) -> Properties:
        """Run the program, delete what it no longer registers, and return the stack's outputs."""
        with self._run() as (run, sockets):
            olds = self.checkpoint.resources
            registrar = Registrar(run, olds, self.engine.stack.project.root)
            monitor = Monitor(run, registrar, sockets / "engine")
            try:
                # The preview of a new stack may never call the provider.
                if not self.preview or olds:
                    run.provider.start()
                return self._supervise(run, registrar, monitor)
            finally:
                monitor.close()

    def destroy(self) -> None:
        with self._with_provider() as run:
            resources = list(self.checkpoint.resources)
            steps.delete_all(run, resources, resources)

    def refresh(self, *, clear: bool) -> Properties:
        """Read every resource and return the stack's outputs."""
        resources = list(self.checkpoint.resources)
        with self._with_provider() as run:
            steps.refresh(run, resources)
            if clear:
                run.journal.forget_interrupted()
        return next((state.outputs for state in resources if state.type == STACK_TYPE), {})

    def read_resources(self) -> None:
        """Read every resource before a preview, without events."""
        quiet = dataclasses.replace(self, reporter=Reporter(discard, preview=True))
        resources = list(self.checkpoint.resources)
        with quiet._with_provider() as run:
            steps.refresh(run, resources)
            exist = set(map(id, run.journal.resources()))
            self.checkpoint.resources = [state for state in resources if id(state) in exist]

    @contextlib.contextmanager
    def _with_provider(self) -> Iterator[Run]:
        with self._run() as (run, _):
            if any(state.provider for state in self.checkpoint.resources):
                run.provider.start()
            yield run

    @contextlib.contextmanager
    def _run(self) -> Iterator[tuple[Run, Path]]:
        """Yield a run, and the folder of its sockets, which only this user may enter.

        On Ctrl-C, steps in flight get a few seconds to end and are saved. Longer ones are ended
        with their provider, as by a second Ctrl-C at any moment, and stay pending in the state.
        """
        stack, parallel = self.engine.stack, self.engine.parallel
        project = stack.project
        journal = Journal(self.checkpoint, self.cipher, None if self.preview else stack.file)
        # Outside the project: a socket's path has at most 107 bytes (unix(7)).
        with tempfile.TemporaryDirectory(prefix="gpubed-", ignore_cleanup_errors=True) as folder:
            environment = {**self.engine.environment, "PULUMI_PROJECT": project.name}
            socket = Path(folder, "provider")
            provider = Provider(project.root, socket, environment, parallel, self._log)
            names = stack.name, project.name
            run = Run(*names, journal, provider, self.reporter, self.preview, parallel)
            for pending in self.checkpoint.pending:
                self.reporter.log(
                    "warning",
                    f"an earlier run was interrupted while {pending.type} {pending.state.name};"
                    " if it exists, it is adopted",
                    pending.state.urn,
                )
            try:
                yield run, Path(folder)
            except BaseException as error:
                run.stop()
                run.wait_idle(_GRACE_SECONDS if isinstance(error, KeyboardInterrupt) else math.inf)
                raise
            finally:
                provider.stop()
                journal.close()
        if run.error:
            raise run.error
        if failed := [event for event in self.reporter.steps if event.status == "failed"]:
            raise StepFailed(failed)

    def _supervise(self, run: Run, registrar: Registrar, monitor: Monitor) -> Properties:
        project = self.engine.stack.project
        arguments = ["program", monitor.address, run.project, run.stack, str(project.root)]
        arguments += [project.entry, str(run.parallel), str(self.preview)]
        program = Child(arguments, project.directory, self.engine.environment, self._log)
        program.pump_output()
        try:
            while not monitor.finished.wait(0.05) and program.poll() is None:
                pass
            run.wait_idle()
            finished = monitor.finished.is_set()
            if finished and not run.stopping:
                steps.delete_all(run, run.journal.resources(), registrar.leftovers())
            monitor.may_exit.set()
            code = program.wait()
            # An exit code of 0 is not enough: the program may have called `sys.exit` half-way.
            if not run.stopping and (code or not finished):
                early = f"it ended early with exit code {code}"
                last = last_words(self.reporter.last_error) or early
                run.stop(
                    ProgramFailed(f"the program failed: {last}", "its traceback is in the log")
                )
            if (root := registrar.root) is None:
                return {}
            # After a failure, outputs that the program did not set keep their old values.
            merged = {**(root.outputs if run.stopping else {}), **(monitor.outputs or {})}
            if merged != root.outputs:
                root.outputs = merged
                run.journal.touch(root)
            return merged
        except BaseException:
            run.stop()
            raise
        finally:
            program.stop()

    def _log(self, line: str) -> None:
        self.reporter.log("info", line)

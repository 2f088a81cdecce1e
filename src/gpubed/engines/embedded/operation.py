"""Supervises one operation: its processes, interruption and end."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpubed.engines.embedded import refresh, steps
from gpubed.engines.embedded.child import Child
from gpubed.engines.embedded.events import Reporter, discard
from gpubed.engines.embedded.failures import ProgramFailed, StepFailed, last_words
from gpubed.engines.embedded.journal import Journal
from gpubed.engines.embedded.monitor import Monitor
from gpubed.engines.embedded.provider import Provider
from gpubed.engines.embedded.registration import Registrar
from gpubed.engines.embedded.run import Run
from gpubed.engines.embedded.stack import OpenStack, Stack
from gpubed.engines.embedded.state import STACK_TYPE
from gpubed.engines.embedded.values import Properties, Secret

_GRACE_SECONDS = 3.0  # for steps in flight, once the run is interrupted


@dataclass(frozen=True)
class Operation:
    """An operation on an open stack; a preview changes and saves nothing."""

    stack: Stack
    opened: OpenStack
    reporter: Reporter
    preview: bool
    parallel: int
    environment: Mapping[str, str]

    def deploy(self) -> Properties:
        """Run the program, delete what it no longer registers, and return the stack's outputs."""
        with self._run() as (run, sockets):
            olds, config = self.opened.checkpoint.resources, self.opened.config
            registrar = Registrar(run, olds, config)
            root = self.stack.project.root
            monitor = Monitor(run, registrar, config, root, sockets / "engine")
            try:
                # The preview of a new stack may never call the provider.
                run.provider.start(config, at_once=not self.preview or bool(olds))
                return self._supervise(run, registrar, monitor)
            finally:
                monitor.close()

    def destroy(self) -> None:
        """Delete everything, with the recorded configuration of the providers."""
        resources = list(self.opened.checkpoint.resources)
        self._without_program(lambda run: steps.delete_all(run, resources, resources))

    def refresh(self, *, clear: bool) -> Properties:
        """Read every resource and return the stack's outputs."""
        resources = list(self.opened.checkpoint.resources)

        def work(run: Run) -> None:
            refresh.refresh(run, resources)
            if clear:
                run.journal.forget_interrupted()

        self._without_program(work)
        return next((state.outputs for state in resources if state.type == STACK_TYPE), {})

    def look(self) -> None:
        """Read every resource before a preview, without events."""
        resources = list(self.opened.checkpoint.resources)

        def work(run: Run) -> None:
            refresh.refresh(run, resources)
            there = {id(state) for state in run.journal.resources()}
            self.opened.checkpoint.resources = [s for s in resources if id(s) in there]

        quiet = dataclasses.replace(self, reporter=Reporter(discard, preview=True))
        quiet._without_program(work)

    def _without_program(self, work: Callable[[Run], None]) -> None:
        with self._run() as (run, _):
            resources = self.opened.checkpoint.resources
            if any(state.provider for state in resources):
                recorded = (state.outputs for state in resources if state.is_provider)
                run.provider.start(next(recorded, {}))
            work(run)

    @contextlib.contextmanager
    def _run(self) -> Iterator[tuple[Run, Path]]:
        """Yield a run, and the folder of its sockets, which only this user may enter.

        On Ctrl-C, steps in flight get a few seconds to end and are saved. Longer ones are ended
        with their provider, as by a second Ctrl-C at any moment, and stay pending in the state.
        """
        project, file = self.stack.project, None if self.preview else self.stack.file
        journal = Journal(self.opened.checkpoint, self.opened.cipher, file)
        # Outside the project: a socket's path has at most 107 bytes (unix(7)).
        with tempfile.TemporaryDirectory(prefix="gpubed-", ignore_cleanup_errors=True) as folder:
            provider = Provider(
                project.name,
                project.root,
                Path(folder, "provider"),
                self.environment,
                self.parallel,
                lambda line: self.reporter.log("info", line),
            )
            run = Run(
                self.stack.name,
                project.name,
                journal,
                provider,
                self.reporter,
                self.preview,
                self.parallel,
            )
            for pending in self.opened.checkpoint.pending:
                self.reporter.log(
                    "warning",
                    f"an earlier run was interrupted while {pending.type} {pending.state.name};"
                    " what of it is there is found again, and counts as made",
                    pending.state.urn,
                )
            try:
                yield run, Path(folder)
            except BaseException as error:
                run.stop()
                interruptions = _interruptions(error)
                if interruptions < 2:
                    run.wait_idle(_GRACE_SECONDS if interruptions else math.inf)
                raise
            finally:
                provider.stop()
                journal.close()
        if run.error:
            raise run.error
        if failed := self.reporter.failed:
            raise StepFailed(failed)

    def _supervise(self, run: Run, registrar: Registrar, monitor: Monitor) -> Properties:
        program = self._start_program(monitor.address)
        try:
            while not monitor.finished.wait(0.05) and program.poll() is None:
                pass
            run.wait_idle()
            finished = monitor.finished.is_set()
            if finished and not run.stopping:
                steps.delete_all(run, run.journal.resources(), registrar.leftovers())
            monitor.may_exit.set()
            code = program.wait()
            # Exit code 0 is no proof: the program may have called `sys.exit` half-way.
            if not run.stopping and (code or not finished):
                early = f"it ended early with exit code {code}"
                last = last_words(self.reporter.last_error) or early
                run.stop(
                    ProgramFailed(f"the program failed: {last}", "its traceback is in the log")
                )
            return self._outputs(run, registrar, monitor)
        except BaseException:
            run.stop()
            raise
        finally:
            program.stop()

    def _start_program(self, address: str) -> Child:
        project, config = self.stack.project, self.opened.config
        plain = {k: v.value if isinstance(v, Secret) else v for k, v in config.items()}
        secret = [key for key, value in config.items() if isinstance(value, Secret)]
        program = Child(
            [
                *("-m", "gpubed.engines.embedded.program", address, project.name, self.stack.name),
                *(str(project.root), project.entry, str(self.parallel)),
                "true" if self.preview else "false",
            ],
            project.directory,
            {
                **self.environment,
                "PULUMI_CONFIG": json.dumps(plain),
                "PULUMI_CONFIG_SECRET_KEYS": json.dumps(secret),
            },
            lambda line: self.reporter.log("info", line),
        )
        program.pump_output()
        return program

    def _outputs(self, run: Run, registrar: Registrar, monitor: Monitor) -> Properties:
        if (root := registrar.root) is None:
            return {}
        # After a failure, outputs that the program did not reach keep their old values.
        kept = root.outputs if run.stopping else {}
        merged = {**kept, **(monitor.outputs or {})}
        if merged != root.outputs:
            root.outputs = merged
            run.journal.touch(root)
        return merged


def _interruptions(error: BaseException | None) -> int:
    """Count the Ctrl-Cs in an exception and its `__context__` chain."""
    count = 0
    while error is not None:
        count += isinstance(error, KeyboardInterrupt)
        error = error.__context__
    return count

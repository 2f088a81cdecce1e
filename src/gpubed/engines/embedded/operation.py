"""Supervises one operation: its processes, its interruption and its end."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpubed.core.errors import UsageError
from gpubed.engines.embedded import deletion, meeting, refresh
from gpubed.engines.embedded.child import Child
from gpubed.engines.embedded.events import discard
from gpubed.engines.embedded.failures import ProgramFailed, StepFailed, last_words
from gpubed.engines.embedded.journal import Journal
from gpubed.engines.embedded.monitor import Monitor
from gpubed.engines.embedded.provider import Provider
from gpubed.engines.embedded.registration import Registrar
from gpubed.engines.embedded.reporter import Reporter
from gpubed.engines.embedded.run import Run
from gpubed.engines.embedded.stack import OpenStack, Stack
from gpubed.engines.embedded.state import State
from gpubed.engines.embedded.steps import Steps
from gpubed.engines.embedded.urn import STACK_TYPE
from gpubed.engines.embedded.values import Properties, Secret

# What a step in flight has to end in, once somebody has interrupted the run.
_GRACE_SECONDS = 3.0


@dataclass(frozen=True)
class Operation:
    """An operation on an open stack.

    Attributes:
        stack: The stack's files.
        opened: Its state before the operation.
        reporter: Who hears of it.
        preview: Nothing is changed or saved.
        parallel: How many steps may run at once.
        environment: Extra variables for the program and the providers.
        replace: URNs of what a deployment replaces whether it changed or not.
    """

    stack: Stack
    opened: OpenStack
    reporter: Reporter
    preview: bool
    parallel: int
    environment: Mapping[str, str]
    replace: Sequence[str] = ()

    def deploy(self) -> Properties:
        """Runs the program, deletes what it no longer wants, and returns the stack's outputs."""
        with self._run() as run:
            steps = Steps(run)
            olds, config = self.opened.checkpoint.resources, self.opened.config
            registrar = Registrar(run, steps, olds, config, self._forced())
            monitor = Monitor(run, registrar, self.opened.config, self.stack.project.root)
            try:
                # Where all is new, a preview may have nothing to ask it.
                run.provider.start(self.opened.config, at_once=not self.preview or bool(olds))
                return self._supervise(run, steps, registrar, monitor)
            finally:
                monitor.close()

    def _forced(self) -> Sequence[str]:
        known = {state.urn for state in self.opened.checkpoint.resources}
        if unknown := [urn for urn in self.replace if urn not in known]:
            raise UsageError(f"the stack has no resource {unknown[0]}", "pulumi stack --show-urns")
        return self.replace

    def destroy(self) -> None:
        """Deletes everything, with the configuration the providers were recorded with."""
        resources = list(self.opened.checkpoint.resources)
        self._without_program(lambda run: deletion.delete(run, Steps(run), resources, resources))

    def refresh(self, *, clear: bool) -> Properties:
        """Reads every resource and returns the stack's outputs.

        Args:
            clear: Forget interrupted creations.
        """
        resources = list(self.opened.checkpoint.resources)

        def work(run: Run) -> None:
            refresh.refresh(run, resources)
            if clear:
                run.journal.forget_interrupted()

        self._without_program(work)
        return next((state.outputs for state in resources if state.type == STACK_TYPE), {})

    def look(self) -> None:
        """Reads every resource, for a preview: what it starts from is what is really there."""
        quiet = dataclasses.replace(self, reporter=Reporter(discard, preview=True))
        resources = list(self.opened.checkpoint.resources)

        def work(run: Run) -> None:
            refresh.refresh(run, resources)
            there = {id(state) for state in run.journal.resources()}
            self.opened.checkpoint.resources = [s for s in resources if id(s) in there]

        quiet._without_program(work)

    def _without_program(self, work: Callable[[Run], None]) -> None:
        with self._run() as run:
            resources = self.opened.checkpoint.resources
            if any(state.provider for state in resources):
                run.provider.start(_recorded_config(resources))
            work(run)

    @contextlib.contextmanager
    def _run(self) -> Iterator[Run]:
        """Gives the body a run; on Ctrl-C, in-flight steps may still end and are saved first.

        Those that take longer are ended with their provider, like any by a second Ctrl-C,
        wherever in the clean-up it falls: what they leave is in the state as pending.
        """
        file = None if self.preview else self.stack.file
        journal = Journal(self.opened.checkpoint, self.opened.cipher, file)
        needed = contextlib.ExitStack()
        sockets = needed.enter_context(meeting.folder())
        provider = Provider(
            self.stack.project.name,
            self.stack.project.root,
            sockets,
            self.environment,
            self.parallel,
            lambda line: self.reporter.log("info", line),
        )
        run = Run(
            self.stack.name,
            self.stack.project.name,
            journal,
            provider,
            self.reporter,
            sockets,
            self.preview,
            self.parallel,
        )
        self._warn_of_interruptions()
        try:
            yield run
        except BaseException as error:
            run.stop()
            interruptions = _interruptions(error)
            if interruptions < 2:
                run.wait_idle(_GRACE_SECONDS if interruptions else math.inf)
            raise
        finally:
            provider.stop()
            journal.close()
            needed.close()
        if run.error:
            raise run.error
        if failed := self.reporter.failed:
            raise StepFailed(failed)

    def _supervise(
        self, run: Run, steps: Steps, registrar: Registrar, monitor: Monitor
    ) -> Properties:
        program = self._start_program(monitor.address)
        try:
            while not monitor.finished.wait(0.05) and program.poll() is None:
                pass
            run.wait_idle()
            if monitor.finished.is_set() and not run.stopping:
                deletion.delete(run, steps, run.journal.resources(), registrar.leftovers())
            monitor.let_exit()
            self._judge(run, program, finished=monitor.finished.is_set())
            return _record_outputs(run, registrar.root, monitor.outputs)
        except BaseException:
            run.stop()
            raise
        finally:
            program.stop()

    def _start_program(self, address: str) -> Child:
        project, config = self.stack.project, self.opened.config
        plain = {k: v.value if isinstance(v, Secret) else v for k, v in config.items()}
        secret = [key for key, value in config.items() if isinstance(value, Secret)]
        preview = "true" if self.preview else "false"
        program = Child(
            [
                *("-m", "gpubed.engines.embedded.program", address, project.name, self.stack.name),
                *(str(project.root), project.entry, str(self.parallel), preview),
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

    def _judge(self, run: Run, program: Child, *, finished: bool) -> None:
        code = program.wait()
        # Exit code 0 alone proves nothing: the program may have called `sys.exit` half-way.
        if run.stopping or (finished and not code):
            return
        last = last_words(self.reporter.last_error or "") or f"it ended early with exit code {code}"
        run.stop(ProgramFailed(f"the program failed: {last}", "its traceback is in the log"))

    def _warn_of_interruptions(self) -> None:
        for pending in self.opened.checkpoint.pending:
            self.reporter.log(
                "warning",
                f"an earlier run was interrupted while {pending.type} {pending.state.name};"
                " what of it is there is found again, and counts as made",
                pending.state.urn,
            )


def _record_outputs(run: Run, root: State | None, outputs: Properties | None) -> Properties:
    if root is None:
        return {}
    # After a failure, what the program did not get to export still holds.
    kept = root.outputs if run.stopping else {}
    merged = {**kept, **(outputs or {})}
    if merged != root.outputs:
        root.outputs = merged
        run.journal.touch(root)
    return merged


def _interruptions(error: BaseException | None) -> int:
    """Counts the Ctrl-Cs in an exception and in those it interrupted the handling of."""
    count = 0
    while error is not None:
        count += isinstance(error, KeyboardInterrupt)
        error = error.__context__
    return count


def _recorded_config(resources: list[State]) -> Properties:
    for state in resources:
        if state.type.startswith("pulumi:providers:"):
            return state.outputs
    return {}

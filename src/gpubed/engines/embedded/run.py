"""The shared state of one operation: its steps, how it stops, and its journal on disk."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from gpubed.engines.embedded.backend import StackFile
from gpubed.engines.embedded.checkpoint import Checkpoint, Pending, manifest
from gpubed.engines.embedded.cipher import PassphraseCipher
from gpubed.engines.embedded.events import ProviderFailed, Reporter
from gpubed.engines.embedded.provider import Provider
from gpubed.engines.embedded.state import State, encode


class Journal:
    """Collects this run's states and writes them with the untouched old ones.

    A pending operation is on disk before a provider is called, so that a killed engine leaves a
    trace of the call. Results are written by the next group commit: many steps share one write.
    Without a file (in a preview), nothing is written.
    """

    def __init__(
        self, checkpoint: Checkpoint, cipher: PassphraseCipher, file: StackFile | None
    ) -> None:
        self._cipher = cipher
        self._file = file
        self._base = {id(state): state for state in checkpoint.resources}
        self._done: dict[int, State] = {}
        # Only an interrupted create may have left something that no state names.
        self._pending = [op for op in checkpoint.pending if op.type == "creating"]
        self._encoded: dict[int, str] = {}
        self._changed = threading.Condition(threading.RLock())
        self._version = self._written = 0
        self._error: Exception | None = None
        self._closed = False
        self._writer = threading.Thread(target=self._write_loop, name="journal", daemon=True)
        if file:
            self._writer.start()

    def resources(self) -> list[State]:
        """Return this run's states in order of completion, then the untouched old ones."""
        with self._changed:
            return [*self._done.values(), *self._base.values()]

    def begin(self, state: State, type_: str) -> Pending:
        """Record a provider call that is about to start, and wait until the record is on disk."""
        operation = Pending(state, type_)
        with self._changed:
            self._pending.append(operation)
            self._bump()
            version = self._version
            while self._file and self._written < version and not self._error:
                self._changed.wait()
            if self._error:
                raise self._error
        return operation

    @contextlib.contextmanager
    def atomic(self) -> Iterator[None]:
        """Write the changes of the body together."""
        with self._changed:
            yield

    def settle(self, operation: Pending | None) -> None:
        """Remove a pending operation; record its result in the same `atomic` body."""
        if operation:
            with self._changed:
                self._pending.remove(operation)
                self._bump()

    def record(
        self, new: State | None = None, replaces: State | None = None, *, changed: bool = True
    ) -> None:
        """Add a finished state and drop the one it replaces."""
        with self._changed:
            if replaces:
                self._base.pop(id(replaces), None)
                self._done.pop(id(replaces), None)
            if new:
                self._done[id(new)] = new
            if changed:
                self._bump()

    def touch(self, state: State) -> None:
        """Mark a recorded state as changed in place."""
        with self._changed:
            self._encoded.pop(id(state), None)
            self._bump()

    def forget_interrupted(self) -> None:
        """Drop the interrupted creations of earlier runs."""
        with self._changed:
            if self._pending:
                self._pending.clear()
                self._bump()

    def close(self) -> None:
        """Write what is outstanding and end the writer; raise if the state could not be written."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._file:
            self._writer.join()
        if self._error:
            raise self._error

    def _bump(self) -> None:
        self._version += 1
        self._changed.notify_all()

    def _write_loop(self) -> None:
        assert self._file is not None  # noqa: S101
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._version > self._written)
                if self._version == self._written:
                    return
                version, text = self._version, self._text(self._file)
            try:
                if not self._written:
                    self._file.keep()
                self._file.write(text)
            except Exception as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._written = version
                self._changed.notify_all()

    def _text(self, file: StackFile) -> str:
        latest = {
            "manifest": manifest(),
            "secrets_providers": {"type": "passphrase", "state": {"salt": self._cipher.salt}},
        }
        checkpoint = {"stack": f"organization/{file.project}/{file.stack}"}
        states = self.resources()
        tainted = any(state.taint for state in states)
        head = {"version": 4, "features": ["taint"]} if tainted else {"version": 3}
        for state in states:
            if id(state) not in self._encoded:
                self._encoded[id(state)] = self._encode(state)
        resources = [self._encoded[id(state)] for state in states]
        pending = [
            f'{{"resource":{self._encode(op.state)},"type":{json.dumps(op.type)}}}'
            for op in self._pending
        ]
        # One resource per line keeps the file readable and diffs useful.
        lists = "".join(
            f',"{name}":[\n{lines}\n]'
            for name, items in (("resources", resources), ("pending_operations", pending))
            if (lines := ",\n".join(items))
        )
        return (
            f"{json.dumps(head)[:-1]},"
            f'"checkpoint":{json.dumps(checkpoint)[:-1]},"latest":{json.dumps(latest)[:-1]}{lists},'
            '"metadata":{}}}}\n'
        )

    def _encode(self, state: State) -> str:
        return json.dumps(encode(state, self._cipher))


class Halted(Exception):
    """The run is stopping: no new step may start."""


@dataclass
class Step:
    """Details of a step for its last event: the changed keys, the operation to count, a remark."""

    why: tuple[str, ...]
    counts_as: str
    message: str | None = None


@dataclass
class Run:
    """The shared state of an operation."""

    stack: str  # the stack's name
    project: str  # the project's name
    journal: Journal
    provider: Provider
    reporter: Reporter
    preview: bool
    parallel: int  # how many steps may run at once
    # Guards decisions and the lists of states; never held during a provider's step
    lock: threading.RLock = field(default_factory=threading.RLock)
    error: BaseException | None = None  # the first error, which is the one that is reported
    stopping: bool = False  # whether new steps are refused

    def __post_init__(self) -> None:
        self._idle = threading.Condition(self.lock)
        self._slots = threading.Semaphore(self.parallel)
        self._in_flight = 0

    def stop(self, error: BaseException | None = None) -> Halted:
        """Refuse new steps; return what a thread may raise."""
        with self.lock:
            self.stopping = True
            self.error = self.error or error
            self._idle.notify_all()
        return Halted()

    def check_open(self) -> None:
        """Raise `Halted` once the run is stopping."""
        if self.stopping:
            raise Halted

    def wait_idle(self, seconds: float = math.inf) -> None:
        """Wait until every step in flight has ended and is recorded, or for the given time."""
        deadline = time.monotonic() + seconds
        with self._idle:
            while self._in_flight and time.monotonic() < deadline:
                # Short waits let Ctrl-C through.
                self._idle.wait(0.2)

    @contextlib.contextmanager
    def step(self, op: str, state: State, why: tuple[str, ...] = ()) -> Iterator[Step]:
        """Run the body as a step when a slot is free; raise `Halted` if it fails."""
        with self._slots:
            with self._idle:
                self.check_open()
                self._in_flight += 1
            event = self.reporter.started(op, state, why)
            begun, step = time.monotonic(), Step(why, op)
            try:
                yield step
                seconds = time.monotonic() - begun
                self.reporter.ended(
                    event, step.counts_as, why=step.why, message=step.message, seconds=seconds
                )
            except ProviderFailed as failure:
                self.reporter.log("error", str(failure), state.urn)
                seconds, reason = time.monotonic() - begun, failure.reason
                self.reporter.ended(event, status="failed", seconds=seconds, message=reason)
                raise self.stop() from failure
            finally:
                with self._idle:
                    self._in_flight -= 1
                    self._idle.notify_all()

    def each(self, states: Sequence[State], work: Callable[[State], None]) -> None:
        """Run `work` on all states in parallel; a failure lets the others finish."""

        def one(state: State) -> None:
            # A failed step has been reported where it failed.
            with contextlib.suppress(Halted):
                work(state)

        with ThreadPoolExecutor(self.parallel, "each") as pool:
            try:
                for future in [pool.submit(one, state) for state in states]:
                    future.result()
            except BaseException:
                # Leaving the pool waits for started work; nothing else may start.
                self.stop()
                raise

    def refuse_step(self, op: str, state: State, message: str) -> Halted:
        """Report a step that is not allowed, stop the run, and return what to raise."""
        event = self.reporter.started(op, state)
        self.reporter.ended(event, status="failed", seconds=0.0, message=message)
        return self.stop()

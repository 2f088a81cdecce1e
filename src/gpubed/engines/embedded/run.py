"""The shared state of one operation, and how it stops."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from gpubed.engines.embedded.checkpoint import Journal
from gpubed.engines.embedded.events import ProviderFailed, Reporter
from gpubed.engines.embedded.provider import Provider
from gpubed.engines.embedded.state import State


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
    """The shared state of an operation.

    Attributes:
        stack: The stack's name.
        project: The project's name.
        parallel: How many steps may run at once.
        lock: Guards decisions and the lists of states; never held during a provider's step.
        error: The first error, which is the one that is reported.
        stopping: Whether new steps are refused.
    """

    stack: str
    project: str
    journal: Journal
    provider: Provider
    reporter: Reporter
    preview: bool
    parallel: int
    lock: threading.RLock = field(default_factory=threading.RLock)
    error: BaseException | None = None
    stopping: bool = False

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

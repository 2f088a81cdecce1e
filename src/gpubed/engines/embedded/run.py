"""One operation under way: what its parts share, and how it stops."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from gpubed.core.errors import GpubedError
from gpubed.engines.embedded.failures import ProviderFailed
from gpubed.engines.embedded.journal import Journal
from gpubed.engines.embedded.provider import Provider
from gpubed.engines.embedded.reporter import Reporter
from gpubed.engines.embedded.state import State


class Halted(Exception):
    """The run is stopping: no new step may start."""


@dataclass
class Step:
    """What a step learns on its way and its last event tells.

    Attributes:
        why: The keys that changed or forced the step.
        counts_as: The operation it is counted as, where that is not its own; empty for none.
        message: A remark for the user.
    """

    why: tuple[str, ...] = ()
    counts_as: str | None = None
    message: str | None = None


@dataclass
class Run:
    """The shared state of an operation.

    Attributes:
        stack: The stack's name.
        project: The project's name.
        journal: Where states go.
        provider: Who makes them real.
        reporter: Who hears of it.
        sockets: The folder where its processes meet; only this user may enter it.
        preview: Nothing is changed.
        lock: Guards decisions and the lists of states; never held during a provider's step.
    """

    stack: str
    project: str
    journal: Journal
    provider: Provider
    reporter: Reporter
    sockets: Path
    preview: bool
    parallel: int
    lock: threading.RLock = field(default_factory=threading.RLock)
    error: BaseException | None = None

    def __post_init__(self) -> None:
        self._idle = threading.Condition(self.lock)
        self._slots = threading.Semaphore(self.parallel)
        self._in_flight = 0
        self._stopping = False

    @property
    def stopping(self) -> bool:
        """Whether new steps are turned away."""
        return self._stopping

    def stop(self, error: BaseException | None = None) -> None:
        """Lets no new step start; the first error is the one that is reported."""
        with self.lock:
            self._stopping = True
            self.error = self.error or error
            self._idle.notify_all()

    def check_open(self) -> None:
        """Raises `Halted` once the run is stopping."""
        if self._stopping:
            raise Halted

    def wait_idle(self, seconds: float = math.inf) -> None:
        """Waits until every step in flight has ended and is recorded, or the time is over."""
        deadline = time.monotonic() + seconds
        with self._idle:
            while self._in_flight and time.monotonic() < deadline:
                # Short waits let Ctrl-C through.
                self._idle.wait(0.2)

    @contextlib.contextmanager
    def step(self, op: str, state: State, why: tuple[str, ...] = ()) -> Iterator[Step]:
        """Runs the body as a step: announced, limited, and reported however it ends.

        Raises:
            Halted: The step failed, or was not allowed to start.
        """
        with self._slots:
            with self._idle:
                self.check_open()
                self._in_flight += 1
            event = self.reporter.started(op, state, why)
            begun = time.monotonic()
            step = Step(why)
            try:
                yield step
                seconds = time.monotonic() - begun
                ended = dataclasses.replace(
                    event, why=step.why, message=step.message, seconds=seconds
                )
                self.reporter.done(ended, op if step.counts_as is None else step.counts_as)
            except ProviderFailed as failure:
                self.reporter.log("error", str(failure), state.urn)
                self.reporter.fail(event, time.monotonic() - begun, failure.reason)
                self.stop()
                raise Halted from failure
            finally:
                with self._idle:
                    self._in_flight -= 1
                    self._idle.notify_all()

    def each(self, states: Sequence[State], work: Callable[[State], None]) -> None:
        """Runs the work on all states at once; a failure lets the others finish."""

        def one(state: State) -> None:
            # A failed step has been reported where it failed.
            with contextlib.suppress(Halted):
                work(state)

        with ThreadPoolExecutor(self.parallel, "each") as pool:
            try:
                for future in [pool.submit(one, state) for state in states]:
                    future.result()
            except BaseException:
                # Leaving the pool waits for what has started; nothing else may start.
                self.stop()
                raise

    def refuse_step(self, op: str, state: State, message: str) -> None:
        """Reports a step that may not be taken, and stops the run."""
        self.reporter.fail(self.reporter.started(op, state), 0.0, message)
        self.stop()

    def fail(self, error: GpubedError) -> Halted:
        """Stops the run for a reason that belongs to no step; returns what to raise."""
        self.stop(error)
        return Halted()

"""Divides the time of steps: waiting for data, computing, waiting for other ranks.

On a CPU, marks are times of the clock. On a GPU they are events in the compute stream: the host
runs ahead of the GPU, and its clock would count the GPU's work in whichever call waits for it.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

DATA, COMPUTE, COMMUNICATION = "data", "compute", "exposed_communication"
PHASES = (DATA, COMPUTE, COMMUNICATION)
# Number of steps after which events are read: the GPU has passed them by then.
_LAG = 64
_Stamp = float | torch.cuda.Event


class Clock:
    """Times the phases of steps, except before `start` and while paused.

    Args:
        device: What is timed.
        time_factor: Real seconds per second that is told.

    Attributes:
        phases: Seconds of each step, by phase.
        wall_s: Seconds from start to stop by the host's clock, without pauses.
    """

    def __init__(self, device: torch.device, time_factor: float = 1.0) -> None:
        self._device, self._factor = device, time_factor
        self._running = False
        self._marks: list[tuple[str, _Stamp]] = []
        self._unread: deque[list[tuple[str, _Stamp]]] = deque()
        self._since = 0.0
        self.phases: dict[str, list[float]] = {phase: [] for phase in PHASES}
        self.wall_s = 0.0
        self._told = 0

    def start(self) -> None:
        """Starts with the next step, after the device has finished its work."""
        self._settle()
        self._running, self._since = True, time.perf_counter()
        self._marks = [("", self._stamp())]

    def mark(self, phase: str) -> None:
        """Ends a phase: the time since the last mark belongs to it."""
        if self._running:
            self._marks.append((phase, self._stamp()))

    def step(self) -> None:
        """Ends a step; the next one starts at its last mark."""
        if self._running:
            self._unread.append(self._marks)
            self._marks = self._marks[-1:]
            if len(self._unread) > _LAG:
                self._read()

    def stop(self) -> None:
        """Stops, and reads all events after the device has finished."""
        if self._running:
            self._settle()
            self.wall_s += (time.perf_counter() - self._since) / self._factor
            self._running = False
            while self._unread:
                self._read()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Context whose time does not count: checkpoints, validation."""
        was_running = self._running
        self.stop()
        yield
        if was_running:
            self.start()

    @property
    def steps(self) -> int:
        """The number of timed steps."""
        return len(self.phases[COMPUTE])

    def lately(self) -> dict[str, float]:
        """Mean seconds of each phase over the steps that ended since the last call, if any.

        It does not wait for the GPU: unfinished steps count in the next call.
        """
        while self._unread and _is_past(self._unread[0][-1][1]):
            self._read()
        new = {phase: seconds[self._told :] for phase, seconds in self.phases.items()}
        self._told = self.steps
        return {phase: statistics.fmean(seconds) for phase, seconds in new.items() if seconds}

    def _settle(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _stamp(self) -> _Stamp:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _read(self) -> None:
        marks = self._unread.popleft()
        sums = dict.fromkeys(PHASES, 0.0)
        for (_, before), (phase, after) in itertools.pairwise(marks):
            sums[phase] += _seconds(before, after) / self._factor
        for phase, seconds in sums.items():
            self.phases[phase].append(seconds)


def _is_past(stamp: _Stamp) -> bool:
    return isinstance(stamp, float) or stamp.query()


def _seconds(before: _Stamp, after: _Stamp) -> float:
    if isinstance(before, float) or isinstance(after, float):
        return after - before
    after.synchronize()
    return before.elapsed_time(after) / 1000


def summary(clock: Clock) -> dict[str, Any]:
    """Mean and standard deviation (None for one step) of a step and its phases, in seconds.

    `step_s` is from the host's clock over all timed steps, not from the phases: if their sum is
    equal, no time is missing.
    """
    steps = [sum(parts) for parts in zip(*clock.phases.values(), strict=True)]
    figures = {"step_s": clock.wall_s / clock.steps, "step_sd_s": _spread(steps)}
    for phase, seconds in clock.phases.items():
        figures |= {
            f"{phase}_s": statistics.fmean(seconds),
            f"{phase}_sd_s": _spread(seconds),
        }
    return figures


def _spread(seconds: list[float]) -> float | None:
    return statistics.pstdev(seconds) if len(seconds) > 1 else None


def without_sharding(figures: dict[str, Any], alone_s: float | None) -> dict[str, Any]:
    """Redistributes times if ranks wait for each other throughout a step, as with sharding.

    The time beyond that of a rank alone is communication. The deviations of the two parts are
    unknown, so they are None.

    Args:
        figures: Result of `summary`.
        alone_s: Seconds that this rank computes for a step without waiting for others; if it is
            None, the two parts are unknown, too, and None.
    """
    compute = communication = None
    if alone_s is not None:
        work = figures["step_s"] - figures["data_s"]
        compute = min(alone_s, work)
        communication = work - compute
    return {
        **figures,
        f"{COMPUTE}_s": compute,
        f"{COMPUTE}_sd_s": None,
        f"{COMMUNICATION}_s": communication,
        f"{COMMUNICATION}_sd_s": None,
    }

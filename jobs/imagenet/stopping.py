"""On SIGTERM to any rank, ends a training on all ranks together, after a checkpoint."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from averaging import Averaging

# Seconds between two meetings of the ranks: ten seconds after SIGTERM, SIGKILL follows.
MEET_S = 3.0
# A rank that got SIGTERM waits for the next meeting as long as this many meetings, or steps, take.
PATIENCE = 2


class Stop:
    """Whether any rank got SIGTERM; all ranks agree on it after the same step.

    Steps take equally long on all ranks, so ranks meet after a number of steps. A rank that waits
    for a lost one never gets to the next meeting, and ends as without this class.

    Args:
        averaging: Connects this rank to the others.
        begun: Number of steps done before this run.
    """

    def __init__(self, averaging: Averaging, begun: int) -> None:
        self._averaging = averaging
        self._asked, self._ends = threading.Event(), threading.Event()
        self._next, self._met, self._slowest_s = begun, (begun, time.monotonic()), MEET_S
        self._turns = 0  # odd within `at_length`
        heard, told = os.pipe()
        os.set_blocking(told, False)
        # Python runs handlers in the main thread only, which may wait for other ranks.
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        threading.Thread(target=self._listen, args=(heard,), daemon=True).start()

    def _listen(self, heard: int) -> None:
        while os.read(heard, 1)[0] != signal.SIGTERM:
            pass
        self._asked.set()
        turns = self._turns
        while not self._ends.wait(PATIENCE * max(MEET_S, self._slowest_s)):
            before, turns = turns, self._turns
            # The patience counts from the end of `at_length`.
            if turns == before and turns % 2 == 0:
                said = "asked to end, and the other ranks do not answer"
                print(said, file=sys.stderr, flush=True)
                os._exit(128 + signal.SIGTERM)

    @contextmanager
    def at_length(self) -> Iterator[None]:
        """Context of long work: a rank that gets SIGTERM meanwhile waits for its end.

        A validation or a checkpoint may take minutes, in which ranks do not meet. SIGKILL still
        ends them.
        """
        self._turns += 1
        try:
            yield
        finally:
            self._turns += 1

    def meets(self, done: int) -> bool:
        """Whether ranks meet after so many steps; equal on all ranks."""
        return done >= self._next

    def agreed(self, done: int) -> bool:
        """Whether any rank got SIGTERM; all ranks must call it after a step at which they meet."""
        step, at = self._met
        now = time.monotonic()
        seconds = (now - at) / max(1, done - step)
        everyone = self._averaging.gather((self._asked.is_set(), seconds))
        self._met, self._slowest_s = (done, now), max(slow for _, slow in everyone)
        self._next = done + max(1, int(MEET_S / self._slowest_s))
        if any(asked for asked, _ in everyone):
            self._ends.set()
        return self._ends.is_set()

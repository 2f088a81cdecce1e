"""A training that is asked to end (SIGTERM) keeps a checkpoint first, on all ranks together."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from averaging import Averaging

# Seconds between two meetings of the ranks: whoever asks waits for ten, and then kills.
MEET_S = 3.0
# A rank that was asked waits for the next meeting as long as this many meetings, or steps, take.
PATIENCE = 2


class Stop:
    """Whether any rank was asked to end, as all ranks agree after the same step.

    Steps take as long on all ranks, so they meet after a number of steps. A rank that waits for
    one that is gone meets nobody, and ends as it would have without this.

    Args:
        averaging: By which ranks tell each other.
        begun: Steps that were done before these ranks began.
    """

    def __init__(self, averaging: Averaging, begun: int) -> None:
        self._averaging = averaging
        self._asked, self._ends = threading.Event(), threading.Event()
        self._next, self._met, self._slowest_s = begun, (begun, time.monotonic()), MEET_S
        self._turns = 0  # odd while something takes its time
        heard, told = os.pipe()
        os.set_blocking(told, False)
        # Python's own handlers wait while the main thread waits for other ranks.
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
            # From when nothing takes its time any more, there is as long to meet.
            if turns == before and turns % 2 == 0:
                said = "asked to end, and the other ranks do not answer"
                print(said, file=sys.stderr, flush=True)
                os._exit(128 + signal.SIGTERM)

    @contextmanager
    def at_length(self) -> Iterator[None]:
        """Has a rank that is asked meanwhile wait for the end of what happens inside.

        A validation or a checkpoint may take minutes, in which no rank meets another. Who has
        less time for them kills.
        """
        self._turns += 1
        try:
            yield
        finally:
            self._turns += 1

    def meets(self, done: int) -> bool:
        """Whether ranks meet after so many steps; the same on all of them."""
        return done >= self._next

    def agreed(self, done: int) -> bool:
        """Whether any rank was asked; every rank calls it after a step for which they meet."""
        step, at = self._met
        now = time.monotonic()
        seconds = (now - at) / max(1, done - step)
        everyone = self._averaging.gather((self._asked.is_set(), seconds))
        self._met, self._slowest_s = (done, now), max(slow for _, slow in everyone)
        self._next = done + max(1, int(MEET_S / self._slowest_s))
        if any(asked for asked, _ in everyone):
            self._ends.set()
        return self._ends.is_set()

"""A training that is asked to end (SIGTERM) keeps a checkpoint first, on all ranks together."""

from __future__ import annotations

import signal
import time
from typing import Any

from averaging import Averaging

# Seconds between two meetings of the ranks: whoever asks waits for ten, and then kills.
MEET_S = 3.0


class Stop:
    """Whether any rank was asked to end, as all ranks agree after the same step.

    Steps take as long on all ranks, so they meet after a number of steps.
    """

    def __init__(self, averaging: Averaging) -> None:
        self._averaging, self._asked = averaging, False
        self._next, self._met = 0, (0, time.monotonic())
        signal.signal(signal.SIGTERM, self._ask)

    def _ask(self, *_: Any) -> None:
        self._asked = True

    def meets(self, done: int) -> bool:
        """Whether ranks meet after so many steps; the same on all of them."""
        return done >= self._next

    def agreed(self, done: int) -> bool:
        """Whether any rank was asked; every rank calls it after a step for which they meet."""
        step, at = self._met
        now = time.monotonic()
        seconds = (now - at) / max(1, done - step)
        everyone = self._averaging.gather((self._asked, seconds))
        self._met = (done, now)
        self._next = done + max(1, int(MEET_S / max(slow for _, slow in everyone)))
        return any(asked for asked, _ in everyone)

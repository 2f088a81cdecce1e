"""Trying again: for how long, how often, and what."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from gpubed.backends.virtualwall.config import Config
from gpubed.backends.virtualwall.faults import Busy, Unanswered
from gpubed.core import progress
from gpubed.core.errors import GpubedError

T = TypeVar("T")
_GROWTH, _MOST = 1.3, 2.0


@dataclass
class Patience:
    """Time for one thing to be done.

    Attributes:
        interval: Seconds between two looks.
        deadline: When it is used up, by the monotonic clock.
    """

    interval: float
    deadline: float
    _tries: int = field(default=0)

    @classmethod
    def of(cls, config: Config, total: float | None = None) -> Patience:
        """Return fresh patience: all that the configuration allows, or `total` seconds."""
        return cls(config.poll, time.monotonic() + (total or config.patience))

    @property
    def is_over(self) -> bool:
        """Whether there is no time left."""
        return time.monotonic() >= self.deadline

    def look(self) -> None:
        """Wait until the next look."""
        time.sleep(max(0.0, min(self.interval, self.deadline - time.monotonic())))

    def back_off(self, error: GpubedError) -> None:
        """Wait after a call that did not go through: longer each time, up to twice.

        Who waits is told once what for.
        """
        if not self._tries:
            left = max(0.0, self.deadline - time.monotonic())
            said = f"{error.message}; trying again for {left:.0f} s at most"
            progress.emit("note", message=said)
        pause = self.interval * min(_MOST, _GROWTH**self._tries)
        self._tries += 1
        time.sleep(max(0.0, min(pause, self.deadline - time.monotonic())))

    def insist(self, call: Callable[[], T]) -> T:
        """Repeat a call that is safe to repeat until it is answered.

        Raises:
            Busy, Unanswered: There is no time left.
        """
        while True:
            try:
                return call()
            except (Busy, Unanswered) as error:
                if self.is_over:
                    raise
                self.back_off(error)

"""Reads a job's progress from its output: `progress: 3/20 epochs, 3552 images/s`.

One rank prints a line per step; the text after the comma is up to the job.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

# Horovod prefixes each line with the rank; MPI, with the number of the job and the rank.
_LINE = re.compile(
    r"(?:\[(?:\d+,)?\d+\]<stdout>: ?)?progress: (\d{1,15})/([1-9]\d{0,14}) ([^,]+)(?:, (.*))?"
)

# Lines within this time of the first are taken for old lines of a log, without a pace.
_AT_ONCE_S = 1.0


def is_progress(line: str) -> bool:
    """Return whether a line of a job is a progress line."""
    return _LINE.fullmatch(line) is not None


def read(line: str) -> tuple[int, int, str, str] | None:
    """Return done, total, unit and the job's own text of a progress line; None for other lines."""
    match = _LINE.fullmatch(line)
    return match and (int(match[1]), int(match[2]), match[3], match[4] or "")


class Estimate:
    """Estimates the time left from progress lines, assuming a constant pace."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begun: dict[str, float] = {}
        self._since: dict[str, tuple[float, int]] = {}
        self._last: dict[str, int] = {}

    def read(self, line: str) -> str | None:
        """Return the text to show for a progress line; None for other lines."""
        progress = read(line)
        if progress is None:
            return None
        done, of, what, words = progress
        now = self._clock()
        if done < self._last.get(what, 0):
            del self._begun[what]  # a new start, as in the next run of an elastic training
        self._last[what] = done
        if now - self._begun.setdefault(what, now) < _AT_ONCE_S:
            self._since[what] = now, done
        started, first = self._since[what]
        parts = [f"{what}: {done} of {of}", words]
        if first < done < of:
            parts.append(f"{(now - started) / (done - first) * (of - done):.0f} s left")
        return ", ".join(filter(None, parts))

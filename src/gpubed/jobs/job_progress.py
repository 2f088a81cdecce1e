"""Reads a job's progress from its output: `progress: 3/20 epochs, 3552 images/s`.

One rank prints a line per step; the text after the comma is up to the job.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable

# Horovod prefixes each line with the rank, MPI also with the number of the job.
_LINE = re.compile(
    r"(?:\[(?:\d+,)?\d+\]<stdout>: ?)?progress: (\d{1,15})/([1-9]\d{0,14}) ([^,]+)(?:, (.*))?"
)

# Older lines of a followed log arrive at once, and tell nothing of the pace.
_AT_ONCE_S = 1.0


def is_progress(line: str) -> bool:
    """Say whether a line of a job is about its progress."""
    return _LINE.fullmatch(line) is not None


def read(line: str) -> tuple[int, int, str, str] | None:
    """Return what a progress line says (done, total, unit, the job's own text); else None."""
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
        """Return what to show of a progress line; None for other lines."""
        told = read(line)
        if told is None:
            return None
        done, of, what, words = told
        now = self._clock()
        if done < self._last.get(what, 0):
            del self._begun[what]  # it began again, as in the next run of an elastic training
        self._last[what] = done
        if now - self._begun.setdefault(what, now) < _AT_ONCE_S:
            self._since[what] = now, done
        started, first = self._since[what]
        said = [f"{what}: {done} of {of}", words]
        if first < done < of:
            said.append(f"{(now - started) / (done - first) * (of - done):.0f} s left")
        return ", ".join(filter(None, said))

"""The server's time, which a test can push on."""

import threading
import time
from datetime import UTC, datetime, timedelta


class Clock:
    """Runs `speed` times as fast as real time, and jumps when it is told to."""

    def __init__(self, speed=1.0):
        self._speed, self._start, self._mono = speed, datetime.now(UTC), time.monotonic()
        self._jumped, self._lock = timedelta(), threading.Lock()

    def now(self):
        """Returns the time in UTC."""
        passed = (time.monotonic() - self._mono) * self._speed
        with self._lock:
            return self._start + timedelta(seconds=passed) + self._jumped

    def advance(self, seconds):
        """Jumps into the future."""
        with self._lock:
            self._jumped += timedelta(seconds=seconds)


def stamp(when):
    """Formats a time as Emulab does: RFC 3339, UTC, whole seconds."""
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse(text):
    """Reads an RFC 3339 time; raises ValueError. No zone means UTC."""
    when = datetime.fromisoformat(text)
    return when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)

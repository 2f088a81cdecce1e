"""Handles signals: an interrupted run ends within seconds, with the signal's exit code.

The first Ctrl-C, SIGTERM or hangup lets steps in flight end and be saved. What does not end in time
is killed, and the next run repairs that (`runlock`, `engines.embedded.run`).
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from contextlib import suppress
from types import FrameType

from gpubed.engines.embedded import child

_WORDS = ["interrupted", "run the same command again: it goes on where it stopped"]
_SEEN: list[int] = []
EXIT = 128  # plus the signal's number: the exit code, as in shells
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LIMIT_S = 5.0  # together with the time that descendants get to end, less than 10 s
_ONE_S = 0.25  # `timeout` and terminals may send two signals at a time, which count as one


def handle(*, limited: bool) -> list[int]:
    """Let signals interrupt the main thread, and return the list that collects their numbers.

    A hangup that is ignored (`nohup`) stays so. If `limited`, a run that does not end by itself is
    ended by force.
    """
    _SEEN.clear()
    last = [-math.inf]

    def interrupt(number: int, _frame: FrameType | None) -> None:
        now, before = time.monotonic(), last[0]
        last[0] = now
        if now - before < _ONE_S:
            return
        if limited:
            limit = threading.Timer(_LIMIT_S, _end, [number])
            limit.daemon = True
            limit.start()
        _SEEN.append(number)
        raise KeyboardInterrupt

    for number in _SIGNALS:
        # A shell ignores SIGINT for its background jobs; it counts here all the same.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    return _SEEN


def came() -> bool:
    """Return whether this run is being interrupted, so that later failures come from that."""
    return bool(_SEEN)


def is_the_end() -> None:
    """Treat later interruptions as the normal end, without a message."""
    _WORDS[0] = ""


def words() -> tuple[str, str]:
    """Return the message (may be empty) and the hint for an interruption."""
    return _WORDS[0], _WORDS[1]


def then(hint: str) -> None:
    """Set the hint for an interruption, for commands that do not resume."""
    _WORDS[1] = hint


def leave_nobody() -> None:
    """End all descendants of this process; ignore signals from here on."""
    if (
        threading.current_thread() is threading.main_thread()
    ):  # only the main thread may set handlers
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    child.end_descendants()


def _end(number: int) -> None:
    # Bypass the terminal's display: a stuck thread may hold its lock for ever.
    if _WORDS[0]:
        with suppress(OSError):
            os.write(2, f"error: {_WORDS[0]}\n  → {_WORDS[1]}\n".encode())
    leave_nobody()
    # A normal exit would wait for threads.
    os._exit(EXIT + number)

"""Handles signals: an interrupted run ends within seconds, with the signal's exit code.

The first Ctrl-C, SIGTERM or hangup lets steps in flight end and be saved. Processes that do not end
in time are killed, and the next run repairs the consequences (`runlock`, `engines.embedded.run`).
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

_MESSAGE = ["interrupted", "run the same command again: it goes on where it stopped"]
_RECEIVED: list[int] = []
EXIT = 128  # plus the signal's number: the exit code, as in shells
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LIMIT_S = 5.0  # together with the time that descendants get to end, less than 10 s
_SAME_S = 0.25  # signals within this time count as one: `timeout` and terminals may send two


def handle(*, limited: bool) -> list[int]:
    """Let signals interrupt the main thread, and return the list that collects their numbers.

    A hangup that is ignored (`nohup`) stays ignored. If `limited`, a run that does not end by
    itself within 5 s is killed.
    """
    _RECEIVED.clear()
    last = [-math.inf]

    def interrupt(number: int, _frame: FrameType | None) -> None:
        now, before = time.monotonic(), last[0]
        last[0] = now
        if now - before < _SAME_S:
            return
        if limited:
            limit = threading.Timer(_LIMIT_S, _end, [number])
            limit.daemon = True
            limit.start()
        _RECEIVED.append(number)
        raise KeyboardInterrupt

    for number in _SIGNALS:
        # SIGINT is handled even if a shell has ignored it for a background job.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    return _RECEIVED


def arrived() -> bool:
    """Return whether this run is being interrupted, so that later failures come from that."""
    return bool(_RECEIVED)


def end_quietly() -> None:
    """Treat later interruptions as the normal end, without a message."""
    _MESSAGE[0] = ""


def message() -> tuple[str, str]:
    """Return the message (may be empty) and the hint for an interruption."""
    return _MESSAGE[0], _MESSAGE[1]


def set_hint(hint: str) -> None:
    """Set the hint for an interruption, for commands that do not resume."""
    _MESSAGE[1] = hint


def end_descendants() -> None:
    """End all descendants of this process; ignore signals from here on."""
    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    child.end_descendants()


def _end(number: int) -> None:
    # Bypass the terminal's display: a stuck thread may hold its lock for ever.
    if _MESSAGE[0]:
        with suppress(OSError):
            os.write(2, f"error: {_MESSAGE[0]}\n  → {_MESSAGE[1]}\n".encode())
    end_descendants()
    # A normal exit would wait for threads.
    os._exit(EXIT + number)

"""Handles signals: an interrupted run ends within seconds, with the signal's exit code.

Ctrl-C, SIGTERM and a closed terminal are the same to a run: the first of them lets
steps in flight end and be saved. What does not end in time is ended as a kill would, which
the next run repairs (`runlock`, `engine.journal`).
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
EXIT = 128  # with the signal's number: the exit code, as shells count it
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LIMIT_S = 5.0  # with the seconds that descendants have to end, less than 10 in all
_ONE_S = 0.25  # `timeout` and terminals send two signals at a time, which count as one


def handle(*, limited: bool) -> list[int]:
    """Let signals interrupt the main thread; a hangup that was ignored so far stays so (`nohup`).

    Args:
        limited: Whether the run is ended by force when it does not end by itself.

    Returns:
        The numbers of the signals, as they come.
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
    """Return whether this run is being interrupted: later failures come from that."""
    return bool(_SEEN)


def is_the_end() -> None:
    """Treat later interruptions as the usual end, without a message."""
    _WORDS[0] = ""


def words() -> tuple[str, str]:
    """Return the message (may be empty) and the hint for an interruption."""
    return _WORDS[0], _WORDS[1]


def then(hint: str) -> None:
    """Set the hint for an interruption, for commands that do not resume."""
    _WORDS[1] = hint


def leave_nobody() -> None:
    """End everything that this process started; signals no longer interrupt it."""
    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
    child.end_descendants()


def _end(number: int) -> None:
    # Not through the terminal's display: a thread that is stuck may hold its lock for ever.
    if _WORDS[0]:
        with suppress(OSError):
            os.write(2, f"error: {_WORDS[0]}\n  → {_WORDS[1]}\n".encode())
    leave_nobody()
    # Threads that wait for others would keep the interpreter.
    os._exit(EXIT + number)

"""Runs an interactive program in the user's terminal.

The program shares the terminal and process group, so that it receives Ctrl-C and Ctrl-Z.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from gpubed.engines import interruption

# Signals forwarded to the program, which decides how to end; gpubed ends with it.
_ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def run(words: Sequence[str]) -> int:
    """Run a program, searched on PATH; return its exit code, 128 + n after signal n."""
    # Blocked until they can be forwarded; else they would end gpubed instead of the program.
    held = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDS)
    before = dict[signal.Signals, Any]()
    try:
        child = os.posix_spawnp(words[0], list(words), os.environ, setsigmask=held)

        def send_on(number: int, _frame: FrameType | None) -> None:
            with suppress(ProcessLookupError):
                os.kill(child, number)

        before = {number: signal.signal(number, send_on) for number in _ENDS}
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        code = os.waitstatus_to_exitcode(_ended(child))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
    return code if code >= 0 else interruption.EXIT - code


def _ended(child: int) -> int:
    """Wait for the program's end; stop while it is stopped, so that the shell gets the terminal."""
    while True:
        status = os.waitpid(child, os.WUNTRACED)[1]
        if not os.WIFSTOPPED(status):
            return status
        os.kill(os.getpid(), signal.SIGSTOP)
        os.kill(child, signal.SIGCONT)

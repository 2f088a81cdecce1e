"""Ties a child process to the engine: it ends, with its own children, when the engine does."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

ENGINE_PID = "GPUBED_ENGINE_PID"
PROVIDER_THREADS = "GPUBED_PROVIDER_THREADS"
_PR_SET_PDEATHSIG = 1
_GRACE_SECONDS = 3.0


def attach() -> None:
    """Asks the kernel for SIGTERM when the engine dies, and passes it on to all descendants."""
    signal.signal(signal.SIGTERM, _end)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    # The engine may have died before the request took effect.
    if os.getppid() != int(os.environ[ENGINE_PID]):
        sys.exit("the engine has gone")


def _end(_signal: int, _frame: FrameType | None) -> None:
    end(descendants(os.getpid()))
    # A usual exit would join the worker threads, and those wait for the processes just ended.
    os._exit(128 + signal.SIGTERM)


def end(family: list[int]) -> None:
    """Ends processes: first politely, after a moment by force."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        _send(family, number)
        deadline = time.monotonic() + _GRACE_SECONDS
        while any(map(_running, family)) and time.monotonic() < deadline:
            time.sleep(0.05)


def descendants(pid: int) -> list[int]:
    """Returns all processes below one; a process group would miss those with their own session."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The command name in parentheses may contain spaces.
            fields = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, queue = [], [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)

"""The event stream of a run: one JSON object per line, in the order of events.

Ansible runs inside Pulumi's provider process: its progress reaches the user's terminal
through a file, which is also that of `gpubed up --events FILE`.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

VARIABLE = "GPUBED_EVENTS"
Event = dict[str, Any]
_AT_ONCE = 2**20


_listener: Callable[[Event], None] | None = None


def tell(listener: Callable[[Event], None]) -> None:
    """Call a function with the events of this process where no file takes them."""
    global _listener
    _listener = listener


def emit(what: str, **fields: Any) -> None:
    """Append an event to the file of `GPUBED_EVENTS`; without one, call the listener.

    Args:
        what: `resource`, `roles`, `phase`, `task`, `host`, `checking`, `check`, `error`, `log` or
            `note`.
        fields: Details.
    """
    if target := os.environ.get(VARIABLE):
        line = json.dumps({"at": round(time.time(), 3), "what": what, **fields}, default=str)
        # Progress is for show: where its file cannot be written, the work goes on without it.
        with suppress(OSError):
            # A single short append is atomic, so lines of several processes never mix.
            descriptor = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, line.encode() + b"\n")
            finally:
                os.close(descriptor)
    elif _listener:
        _listener({"what": what, **fields})


@contextmanager
def overdue(message: str, after_s: float = 5.0) -> Iterator[None]:
    """Tell what is waited for, once it takes longer than anybody expects."""
    timer = threading.Timer(after_s, emit, ("note",), {"message": message})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Follower:
    """Calls a function with each event of a file, from a thread of its own.

    Args:
        path: The file, which is created.
        on_event: The function.
        shape: Of an event; lines of another shape are skipped.
    """

    def __init__(self, path: Path, on_event: Callable[[Any], None], shape: Any = Event) -> None:
        self._path = path
        self._on_event = on_event
        self._shape = shape
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Follower:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch(mode=0o600)
        self._start = self._path.stat().st_size
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _follow(self) -> None:
        with self._path.open("rb") as file:
            file.seek(self._start)
            rest = b""
            while True:
                last_round = self._stop.is_set()
                while chunk := file.read(_AT_ONCE):
                    # What has no end of line for so long is no event.
                    rest = self._deliver(rest[-_AT_ONCE:] + chunk)
                if last_round:
                    return
                self._stop.wait(0.1)

    def _deliver(self, data: bytes) -> bytes:
        # Whoever only tells what happens has no need of it, and it takes long to load.
        from gpubed.core import reading

        *lines, rest = data.split(b"\n")
        for line in lines:
            with suppress(reading.Unreadable):  # others may have written something else
                self._on_event(reading.reply(line, "an event").json(self._shape))
        return rest

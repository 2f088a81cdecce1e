"""The event stream of a run: one JSON object per line, in the order of events.

Ansible runs inside Pulumi's provider process, so its progress reaches the terminal through a file:
that of `gpubed up --events FILE`, or one in the cluster's logs.
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
_CHUNK = 2**20  # bytes
_listener: Callable[[Event], None] | None = None


def tell(listener: Callable[[Event], None]) -> None:
    """Set the function that receives this process's events while `GPUBED_EVENTS` is unset."""
    global _listener
    _listener = listener


def emit(what: str, **fields: Any) -> None:
    """Append an event to the file of `GPUBED_EVENTS`; without one, call the listener.

    `what` is `resource`, `roles`, `phase`, `task`, `host`, `checking`, `check`, `error`, `log` or
    `note`.
    """
    if target := os.environ.get(VARIABLE):
        line = json.dumps({"at": round(time.time(), 3), "what": what, **fields}, default=str)
        # Work goes on without progress if its file cannot be written.
        with suppress(OSError):
            # A single short append is atomic, so lines of several processes never mix.
            descriptor = os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(descriptor, line.encode() + b"\n")
            finally:
                os.close(descriptor)
    elif _listener:
        _listener({"what": what, **fields})


def note(message: str) -> None:
    """Emit a message for the user."""
    emit("note", message=message)


@contextmanager
def overdue(message: str, after_s: float = 5.0) -> Iterator[None]:
    """Report what the body waits for if it takes longer than `after_s` seconds."""
    timer = threading.Timer(after_s, note, (message,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class Follower:
    """Creates a file, and calls a function in a thread with each event that is appended to it.

    Lines that do not have the `shape` of an event are skipped.
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
                while chunk := file.read(_CHUNK):
                    # A longer text without a line end is not an event.
                    rest = self._deliver(rest[-_CHUNK:] + chunk)
                if last_round:
                    return
                self._stop.wait(0.1)

    def _deliver(self, data: bytes) -> bytes:
        from gpubed.core import reading  # slow to import, and not needed to emit events

        *lines, rest = data.split(b"\n")
        for line in lines:
            with suppress(reading.Unreadable):  # other programs may write to the file
                self._on_event(reading.reply(line, "an event").json(self._shape))
        return rest

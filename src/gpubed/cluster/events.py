"""Reports a run's steps and log entries to the event file."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpubed.core import progress
from gpubed.core.paths import ClusterPaths
from gpubed.engines.embedded import LogEvent, ResourceEvent


def discard_steps(event: ResourceEvent | LogEvent) -> None:
    """Report the failures and log entries of a preview, but not its steps."""
    if isinstance(event, LogEvent) or event.status == "failed":
        emit(event)


def emit(event: ResourceEvent | LogEvent) -> None:
    """Report a step, or a log entry of the engine."""
    if isinstance(event, ResourceEvent):
        keys = ("op", "status", "urn", "type", "name", "seconds", "message")
        progress.emit("resource", **{key: getattr(event, key) for key in keys})
    else:
        progress.emit("log", severity=event.severity, message=event.message, urn=event.urn)


@contextmanager
def event_file(paths: ClusterPaths, verb: str, wanted: Path | None) -> Iterator[Path]:
    """Yield an event file, to which this process and its workers report progress."""
    path = (wanted or paths.logs / time.strftime(f"%Y%m%d-%H%M%S-{verb}.jsonl")).absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    os.environ[progress.VARIABLE] = str(path)
    try:
        yield path
    finally:
        os.environ.pop(progress.VARIABLE, None)

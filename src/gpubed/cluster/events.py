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
    """Report only failures and log entries of a preview, whose steps the run reports again."""
    if isinstance(event, LogEvent) or event.status == "failed":
        emit(event)


def emit(event: ResourceEvent | LogEvent) -> None:
    """Report a step, or a log entry of the engine."""
    if isinstance(event, ResourceEvent):
        progress.emit(
            "resource",
            op=event.op,
            status=event.status,
            urn=event.urn,
            type=event.type,
            name=event.name,
            seconds=event.seconds,
            message=event.message,
        )
    else:
        progress.emit("log", severity=event.severity, message=event.message, urn=event.urn)


@contextmanager
def event_file(paths: ClusterPaths, verb: str, wanted: Path | None) -> Iterator[Path]:
    """Yield an event file, to which this process and its workers report progress."""
    path = wanted or paths.logs / time.strftime(f"%Y%m%d-%H%M%S-{verb}.jsonl")
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    os.environ[progress.VARIABLE] = str(path)
    try:
        yield path
    finally:
        os.environ.pop(progress.VARIABLE, None)

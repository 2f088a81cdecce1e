"""What a run tells: its steps and its log, for whoever follows it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from gpubed.core import progress
from gpubed.core.paths import ClusterPaths
from gpubed.engines.embedded import LogEvent, ResourceEvent


def discard_steps(event: ResourceEvent | LogEvent) -> None:
    """Of a look ahead, only what went wrong is told: its steps come again."""
    if isinstance(event, LogEvent) or event.status == "failed":
        emit(event)


def emit(event: ResourceEvent | LogEvent) -> None:
    """Tell of a step, or of what the engine logs."""
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
    """Offer a file to all who have progress to tell, in this process and its workers."""
    path = wanted or paths.logs / time.strftime(f"%Y%m%d-%H%M%S-{verb}.jsonl")
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    os.environ[progress.VARIABLE] = str(path)
    try:
        yield path
    finally:
        os.environ.pop(progress.VARIABLE, None)


@contextmanager
def look_file(paths: ClusterPaths, verb: str) -> Iterator[Path]:
    """Offer such a file to a look; of a cluster that nothing is kept of, nothing stays."""
    is_new = not paths.state.exists()
    with ExitStack() as after, event_file(paths, verb, None) as path:
        if is_new:
            after.callback(_forget, path, paths.state)
        yield path


def _forget(path: Path, state: Path) -> None:
    path.unlink(missing_ok=True)
    with suppress(OSError):  # another run has begun to keep something there
        path.parent.rmdir()
        state.rmdir()

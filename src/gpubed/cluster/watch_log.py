"""What a watch did and why: a line each in `logs/watch.log`, an object each for programs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpubed.core import harmless, reading
from gpubed.core.paths import ClusterPaths

_LONGEST = 4000  # characters of an event


@dataclass(frozen=True)
class Event:
    """What a watch did, or found and cannot do.

    Attributes:
        time: When (UTC).
        event: started, amiss, well, repair, person, left, waits, unasked, spent, failed, clock,
            lease, idle, gone or ended.
        why: What was found.
        outcome: What came of it, or what a person can do.
        nodes: The nodes that it is about.
    """

    time: datetime
    event: str
    why: str
    outcome: str = ""
    nodes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {**asdict(self), "time": stamp(self.time)}

    @property
    def line(self) -> str:
        """It on one line, which no terminal obeys: nodes and testbeds have words in it."""
        outcome = f": {self.outcome}" if self.outcome else ""
        words = " ".join(harmless.text(f"{self.why}{outcome}").split())
        return f"{stamp(self.time)} {self.event}: {reading.short(words, _LONGEST)}"


def stamp(moment: datetime) -> str:
    """Write a time of UTC."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def append(paths: ClusterPaths, event: Event, details: str = "") -> None:
    """Add an event to the log.

    Args:
        details: Lines that stand below it, for who repairs gpubed itself.

    Raises:
        OSError: The disk is full.
    """
    paths.logs.mkdir(parents=True, exist_ok=True)
    with _path(paths).open("a", encoding="utf-8") as log:
        log.write(f"{event.line}\n")
        log.writelines(f"  {line}\n" for line in harmless.text(details).splitlines())


@contextmanager
def kept(paths: ClusterPaths) -> Iterator[None]:
    """Let the log outlive the cluster's folder, which may go meanwhile with all that is in it.

    Raises:
        OSError: The disk is full.
    """
    # What a link leads to is somebody else's, and only the link goes.
    linked = paths.state.is_symlink()
    if not (log := _path(paths)).exists() or linked:
        yield
        return
    with TemporaryDirectory() as folder:
        copy = shutil.copy2(log, folder)
        yield
        if not log.exists():
            log.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(copy, log)


def _path(paths: ClusterPaths) -> Path:
    return paths.logs / "watch.log"

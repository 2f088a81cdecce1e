"""What runs on the cluster: gpubed's runs, and Slurm's queue where there is one."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

# As gpubed names them: day, time of day in milliseconds, job.
_RUN = re.compile(r"(?P<started>\d{8}-\d{9})-(?P<job>.+)")
# A run's owner sends a heartbeat every few seconds; after so long without one, it has none.
_SILENCE_S = 60
_SHOWN = 8
# Where a job's lines are: what the controller hands on with its heartbeats, or Slurm's own file.
_OUTPUTS = (".progress", "slurm.log")
# What gpubed says of the cluster, or a notebook of its settings.
_FIRST = ("cluster.json", "settings.json")
_PROGRESS = re.compile(r"(?:\[(?:\d+,)?\d+\]<stdout>: ?)?progress: (\d{1,9})/(\d{1,9}) (.*)")
_TAIL = 4096  # bytes of them
_QUEUE = ("squeue", "--noheader", "--format=%i|%j|%u|%T|%M|%D")
_QUEUE_COLUMNS = ("id", "name", "user", "state", "time", "nodes")


def runs(folders: Iterable[Path], now: float, queued: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the newest runs, newest first; their age in seconds.

    Args:
        folders: Where there are runs: of jobs, and of notebooks.
        queued: The names of Slurm's jobs, among them those of runs.
    """
    found = sorted(
        ((match, path) for path in _within(folders) if (match := _RUN.fullmatch(path.name))),
        key=lambda pair: pair[1].name,
        reverse=True,
    )
    return [_row(path, match["job"], now, queued) for match, path in found[:_SHOWN]]


def _within(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        with suppress(OSError):
            yield from folder.iterdir()


def _row(run: Path, job: str, now: float, queued: Collection[str]) -> dict[str, Any]:
    state = _state(run, now, queued)
    return {
        "job": job,
        "state": state,
        "progress": _progress(run) if state == "running" else "",
        "age_s": _age(run, now),
        "folder": str(run),
    }


def _progress(run: Path) -> str:
    """Return how far a job says it is; empty where it says nothing."""
    for name in _OUTPUTS:
        matches = [found for line in _tail(run / name) if (found := _PROGRESS.fullmatch(line))]
        if matches:
            done, of, words = matches[-1].groups()
            return f"{done} of {of} {words}"
    return ""


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            return file.read(_TAIL).decode(errors="replace").splitlines()
    except OSError:
        return []


def _age(run: Path, now: float) -> float | None:
    """Return the seconds since the first file was written, just before the start."""
    for name in _FIRST:
        with suppress(OSError):
            return now - (run / name).stat().st_mtime
    return None


def _state(run: Path, now: float, queued: Collection[str]) -> str:
    if (run / "metrics.json").is_file():
        return "done"
    return "running" if run.name in queued or _owned(run, now) else "ended without a result"


def _owned(run: Path, now: float) -> bool:
    """Say whether somebody still sends heartbeats for a run, which the last of them ends."""
    beat = run / ".heartbeat"
    try:
        return beat.read_text() != "end\n" and now - beat.stat().st_mtime < _SILENCE_S
    except OSError:
        return False


def queue() -> list[dict[str, str]] | None:
    """Return Slurm's queue; None where there is no Slurm or it does not answer."""
    if shutil.which(_QUEUE[0]) is None:
        return None
    try:
        done = subprocess.run(_QUEUE, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    rows = (line.split("|") for line in done.stdout.splitlines())
    return [dict(zip(_QUEUE_COLUMNS, row, strict=True)) for row in rows]

"""The cluster's work: gpubed's runs, and Slurm's queue if there is one.

Users write into the folders of runs and name their jobs; their data must not delay
the page or break it.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

# Names of gpubed's runs: day, time of day in milliseconds, job.
_RUN = re.compile(r"(?P<started>\d{8}-\d{9})-(?P<job>.+)")
# Seconds without a heartbeat, which is sent every few seconds, after which a run has ended.
_SILENCE_S = 60
_SHOWN = 8
# Files with a job's progress: written with the heartbeats, or Slurm's output.
_OUTPUTS = (".progress", "slurm.log")
# Files of gpubed about the cluster, and of notebooks about their settings.
_FIRST = ("cluster.json", "settings.json")
_PROGRESS = re.compile(
    r"(?:\[(?:\d+,)?\d+\]<stdout>: ?)?progress: (\d{1,15})/([1-9]\d{0,14}) ([^,]+)(?:, (.*))?"
)
# In a progress line: the duration of a part of a step.
_PART = re.compile(r"([a-z][a-z ]{0,30}) (\d{1,9}(?:\.\d{1,9})?) ms")
_TAIL = 4096  # bytes of them
_PARTS = 6  # of a step; with more it is another thing
_WORDS = 160  # characters of a job's own that are shown
# Of a run's figures by step (a JSON object per line): bytes from the end, figures, and points.
_FIGURES, _FIGURES_TAIL, _CURVES, _POINTS = "metrics.jsonl", 2**17, 4, 100
_STEPS = {"step", "global_step", "iteration", "epoch"}
# With the name last, as it may have any character.
_QUEUE = ("squeue", "--noheader", "--format=%i|%u|%T|%M|%D|%j")
_QUEUE_COLUMNS = ("id", "user", "state", "time", "nodes", "name")


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
    told = _progress(run) if state == "running" else None
    return {
        "job": _text(job),
        "state": state,
        "progress": told["words"] if told else "",
        "share": told["share"] if told else None,
        "step": told["step"] if told else [],
        "curves": _curves(run),
        "age_s": _age(run, now),
        "folder": _text(str(run)),
    }


def _text(name: str) -> str:
    """Return a file's name as text, with replacements for bytes that are no UTF-8."""
    return os.fsencode(name).decode(errors="replace")


def _progress(run: Path) -> dict[str, Any] | None:
    """Return a job's last progress, in words and as a share, and the parts of a step.

    None where it says nothing.
    """
    for name in _OUTPUTS:
        with suppress(OSError):
            lines = _end(run / name)[0].splitlines()
            if matches := [found for line in lines if (found := _PROGRESS.fullmatch(line))]:
                return _told(*matches[-1].groups())
    return None


def _told(done: str, of: str, what: str, words: str | None) -> dict[str, Any]:
    said = words.split(", ") if words else []
    parts = [found for one in said if (found := _PART.fullmatch(one))]
    others = [one for one in said if not _PART.fullmatch(one)]
    return {
        "words": ", ".join([f"{done} of {of} {what}", *others])[:_WORDS],
        "share": min(int(done) / int(of), 1.0),
        "step": _step([(part[1], float(part[2]) / 1000) for part in parts]),
    }


def _step(parts: list[tuple[str, float]]) -> list[dict[str, Any]]:
    """Return the parts of a step, in seconds, and their places in it as shares."""
    whole = sum(seconds for _, seconds in parts)
    if not whole or len(parts) > _PARTS:
        return []
    ends = [0.0, *(end / whole for end in accumulate(seconds for _, seconds in parts))]
    return [
        {"name": name, "seconds": seconds, "begin": begin, "share": end - begin}
        for (name, seconds), (begin, end) in zip(parts, pairwise(ends), strict=True)
    ]


def _curves(run: Path) -> dict[str, list[float]]:
    """Return the latest values of a run's first figures by step, minus their least value."""
    curves = dict[str, list[float]]()
    with suppress(OSError):
        for line in _end(run / _FIGURES, _FIGURES_TAIL)[0].splitlines():
            with suppress(ValueError, AttributeError, OverflowError, RecursionError):
                for name, value in json.loads(line).items():
                    known = name in curves or len(curves) < _CURVES
                    if known and name not in _STEPS and isinstance(value, int | float):
                        curves.setdefault(name, []).append(float(value))
    return {
        name.encode(errors="replace").decode()[:_WORDS]: shown
        for name, values in curves.items()
        if len(shown := _above([one for one in values if math.isfinite(one)])) > 1
    }


def _above(values: list[float]) -> list[float]:
    least = min(values, default=0.0)
    return [one - least for one in values[:: len(values) // _POINTS + 1]]


def _end(path: Path, most: int = _TAIL) -> tuple[str, float]:
    """Return the end of a plain file, and the time of its last change, in seconds since 1970.

    Raises:
        OSError: It is not there, or is something else: a link may lead anywhere, and a
            pipe never end.
    """
    with open(path, "rb", opener=_open) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(f"{path} is no plain file")
        file.seek(max(0, found.st_size - most))
        return file.read(most).decode(errors="replace"), found.st_mtime


def _open(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _age(run: Path, now: float) -> float | None:
    """Return the seconds since the first file was written, just before the start."""
    written = (_written(run / name) for name in _FIRST)
    return next((now - at for at in written if at is not None), None)


def _written(path: Path) -> float | None:
    """Return the time of a plain file's last change, in seconds since 1970; None without a file."""
    with suppress(OSError):
        found = path.lstat()
        return found.st_mtime if stat.S_ISREG(found.st_mode) else None
    return None


def _state(run: Path, now: float, queued: Collection[str]) -> str:
    if _written(run / "metrics.json") is not None:
        return "done"
    return "running" if run.name in queued or _owned(run, now) else "ended without a result"


def _owned(run: Path, now: float) -> bool:
    """Return whether a run still gets heartbeats; the last one has the text `end`."""
    try:
        said, at = _end(run / ".heartbeat")
    except OSError:
        return False
    return said != "end\n" and now - at < _SILENCE_S


def queue() -> list[dict[str, str]] | None:
    """Return Slurm's queue; None without Slurm, or if it does not answer."""
    if shutil.which(_QUEUE[0]) is None:
        return None
    try:
        done = subprocess.run(_QUEUE, capture_output=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.decode(errors="replace").split("\n")
    rows = (line.split("|", len(_QUEUE_COLUMNS) - 1) for line in lines)
    # Names with line feeds leave invalid rows.
    return [
        dict(zip(_QUEUE_COLUMNS, row, strict=True))
        for row in rows
        if len(row) == len(_QUEUE_COLUMNS)
    ]

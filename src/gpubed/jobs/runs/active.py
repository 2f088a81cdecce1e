"""Finds, follows and ends active runs, from any terminal.

The process that runs a job holds the lock of the run's folder; the lock's file names the process.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from io import TextIOWrapper
from pathlib import Path

from gpubed.core import runlock
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import ClusterPaths
from gpubed.core.reading import Unreadable
from gpubed.core.runlock import Holder
from gpubed.jobs import jobfile
from gpubed.jobs.runs import checkpoints, record
from gpubed.jobs.runs import output as outputs
from gpubed.jobs.runs.record import Record

_LOOK_EVERY_S = 0.2
_LONGEST_LINE = 2**21  # characters; launchers pass on shorter pieces
_END_S = 120.0  # Slurm and testbeds that run jobs are slow to cancel one


def of_process(paths: ClusterPaths, process: int, since: str) -> Record | None:
    """Return the active run of a process, once the run has a record; else None.

    Args:
        since: A run's name; runs with earlier names are ignored.
    """
    for folder in paths.runs.glob("*"):
        if folder.name >= since and (holder := runlock.holder(folder)) and holder.pid == process:
            try:
                return record.read(folder)
            except Unreadable:
                return None  # it is being written
    return None


def outlive_nodes(paths: ClusterPaths) -> bool:
    """Return whether only elastic trainings are active, which survive the repair of nodes."""
    return bool(checkpoints.trainings(paths)) and ends_with_nodes(paths) is None


def ends_with_nodes(paths: ClusterPaths) -> Record | None:
    """Return an active run that the restart of a node would end; None if there is none."""
    runs = record.every(paths)[0].values()
    return next((run for run in runs if run.state == "running" and not run.elastic), None)


def training_of(paths: ClusterPaths, run: Record) -> str:
    """Return the active training that a run is part of, by its checkpoint folder; else empty."""
    trainings = checkpoints.trainings(paths) if run.elastic else {}
    return next((name for name in checkpoints.of(run) if name in trainings), "")


def parts(paths: ClusterPaths, training: str) -> list[Record]:
    """Return the runs of a training so far, oldest first."""
    runs = record.every(paths)[0].values()
    return [run for run in runs if run.elastic and training in checkpoints.of(run)]


def next_part(paths: ClusterPaths, run: Record) -> Record | None:
    """Wait for the run that continues an elastic training after `run`; None at its end."""
    while True:
        training = training_of(paths, run)
        following = (one for one in record.every(paths)[0].values() if one.elastic)
        if found := next((one for one in following if one.resumes == run.run_id), None):
            return found
        if not training:
            return None
        time.sleep(_LOOK_EVERY_S)


def concurrent(paths: ClusterPaths, run: Record) -> list[str]:
    """Return the runs that shared nodes with a run that ends now, oldest first.

    Each distorts the other's measurements. Runs started elsewhere, such as in JupyterLab, have no
    record on this controller.
    """
    return [
        other.run_id
        for folder, other in record.every(paths)[0].items()
        if other.run_id != run.run_id
        and _shared(other, run)
        and _ended(folder, other) > run.started
    ]


def _shared(one: Record, other: Record) -> bool:
    nodes = {host.id for host in one.origin.hosts if host.slots}
    if nodes.isdisjoint(host.id for host in other.origin.hosts if host.slots):
        return False
    return not (_is_queued(one) and _is_queued(other))


def _is_queued(run: Record) -> bool:
    """Return whether Slurm started a run; it gives nodes to one job at a time."""
    try:
        return (run.request.launcher or jobfile.of(run.request).launcher) == "slurm"
    except GpubedError:
        return False  # its job does not exist any more


def _ended(folder: Path, run: Record) -> datetime:
    """Return the time of a run's end; for a killed run, of its last output."""
    if run.state == "running":
        return record.now()
    if run.seconds is not None:
        return run.started + timedelta(seconds=run.seconds)
    try:
        return datetime.fromtimestamp((folder / record.OUTPUT).stat().st_mtime, run.started.tzinfo)
    except OSError:
        return run.started


def output(paths: ClusterPaths, run: str, *, follow: bool = False) -> Iterator[str]:
    """Yield the lines that a job printed; with `follow`, also those to come until the run ends.

    Raises:
        GpubedError: The run has no output.
    """
    folder = paths.runs / run
    try:
        file = (folder / record.OUTPUT).open("rb")
    except FileNotFoundError:
        why = f"run {run} has printed nothing: there is no {record.OUTPUT} in its folder"
        raise GpubedError(why, f"gpubed runs {paths.name} show {run}") from None
    with TextIOWrapper(file, errors="replace") as log:
        line = ""
        while True:
            # Before reading, so that the last output is not missed.
            is_active = follow and runlock.holder(folder) is not None
            while part := log.readline(_LONGEST_LINE):
                line += part
                # Longer lines are yielded in pieces, to bound memory.
                if line.endswith("\n") or len(line) >= _LONGEST_LINE:
                    yield line.rstrip("\n")
                    line = ""
            read, size = file.tell(), os.fstat(file.fileno()).st_size
            if size < read:  # `Output` left out a piece that was read already
                log.seek(outputs.moved(read, size))
            elif not is_active:
                break
            else:
                time.sleep(_LOOK_EVERY_S)
        if line:
            yield line


def end(paths: ClusterPaths, run: str) -> Record:
    """End a run as Ctrl-C would, and wait for it; a run that has ended stays as it is.

    Raises:
        PrerequisiteMissing: It was started on another machine, or by another user.
        GpubedError: It does not end.
    """
    _end(paths.runs / run / record.LOCK, f"run {run}")
    return record.read(paths.runs / run)


def end_training(paths: ClusterPaths, training: str) -> None:
    """End a training with its current run, if any, and wait for it; raises as `end` does."""
    _end(checkpoints.lock(paths, training), f"training {training}")


def _end(lock: Path, what: str) -> None:
    holder = runlock.holder_of(lock)
    if holder is None:
        return
    _interrupt(lock, what, holder)
    deadline = time.monotonic() + _END_S
    while runlock.holder_of(lock):
        if time.monotonic() > deadline:
            raise GpubedError(
                f"{what} (pid {holder.pid}) does not end",
                f"kill -9 {holder.pid}: its ranks end a minute later",
            )
        time.sleep(_LOOK_EVERY_S)


def _interrupt(lock: Path, what: str, holder: Holder) -> None:
    here = socket.gethostname()
    if holder.host not in ("", here):
        raise PrerequisiteMissing(
            f"{what} was started on {holder.host}, and this is {here}",
            f"the same command on {holder.host}",
        )
    try:
        if runlock.has_open(holder.pid, lock):
            os.kill(holder.pid, signal.SIGINT)
            return
    except PermissionError:
        raise PrerequisiteMissing(
            f"{what} is {holder.user}'s", f"the same command as {holder.user}"
        ) from None
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has just ended, or runs in another container
    if runlock.holder_of(lock):
        raise PrerequisiteMissing(
            f"the process of {what} cannot be seen from here: {holder}",
            "the same command where it was started, such as in the same container",
        )

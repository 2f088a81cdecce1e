"""Follows and ends runs that are at work, from any terminal.

The process that runs a job holds the lock of the run's folder, and the lock names it.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path

from gpubed.core import runlock
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import ClusterPaths
from gpubed.core.reading import Unreadable
from gpubed.core.runlock import Holder
from gpubed.jobs.runs import checkpoints, record
from gpubed.jobs.runs import output as outputs
from gpubed.jobs.runs.record import Record

_LOOK_EVERY_S = 0.2
_LONGEST_LINE = 2**21  # characters; launchers pass on shorter pieces
_END_S = 120.0  # Slurm and testbeds that run jobs are slow to cancel one


def of_process(paths: ClusterPaths, process: int, since: str) -> Record | None:
    """Return the run that a process is at, as soon as it has a record.

    Args:
        since: The name of a run that would have started before all that are meant.
    """
    for folder in paths.runs.glob("*"):
        if folder.name >= since and (who := runlock.holder(folder)) and who.pid == process:
            try:
                return record.read(folder)
            except Unreadable:
                return None  # its first line is being written
    return None


def outlive_nodes(paths: ClusterPaths) -> bool:
    """Say whether only elastic trainings are active, which survive the repair of nodes."""
    return bool(checkpoints.trainings(paths)) and ends_with_nodes(paths) is None


def ends_with_nodes(paths: ClusterPaths) -> Record | None:
    """Return a run at work that would end if a node was restarted; None if there is none."""
    running = (one for one in record.every(paths)[0].values() if one.state == "running")
    return next((one for one in running if not one.elastic), None)


def training_of(paths: ClusterPaths, run: Record) -> str:
    """Return the training, at work or waiting, that a run belongs to; empty if there is none."""
    there = checkpoints.trainings(paths) if run.elastic else {}
    return next((name for name in checkpoints.of(run) if name in there), "")


def parts(paths: ClusterPaths, training: str) -> list[Record]:
    """Return the runs that a training has had so far, oldest first."""
    every = record.every(paths)[0].values()
    return [one for one in every if one.elastic and training in checkpoints.of(one)]


def next_part(paths: ClusterPaths, run: Record) -> Record | None:
    """Wait for the run that continues an elastic training after `run`; None if none comes."""
    while True:
        training = training_of(paths, run)
        following = (one for one in record.every(paths)[0].values() if one.elastic)
        if found := next((one for one in following if one.resumes == run.run_id), None):
            return found
        if not training:
            return None
        time.sleep(_LOOK_EVERY_S)


def output(paths: ClusterPaths, run: str, *, follow: bool = False) -> Iterator[str]:
    """Yield the lines that a job printed; with `follow`, also those to come until the run ends.

    Raises:
        GpubedError: The run has no output.
    """
    folder = paths.runs / run
    try:
        file = (folder / record.OUTPUT).open("rb")
    except FileNotFoundError:
        said = f"run {run} has printed nothing: there is no {record.OUTPUT} in its folder"
        raise GpubedError(said, f"gpubed runs {paths.name} show {run}") from None
    with TextIOWrapper(file, errors="replace") as log:
        begun = ""
        while True:
            # Checked before reading, so that nothing printed before the end is missed.
            goes_on = follow and runlock.holder(folder) is not None
            while part := log.readline(_LONGEST_LINE):
                begun += part
                # A longer line is given in pieces: a job may print lines of any length.
                if begun.endswith("\n") or len(begun) >= _LONGEST_LINE:
                    yield begun.rstrip("\n")
                    begun = ""
            read, size = file.tell(), os.fstat(file.fileno()).st_size
            if size < read:  # a part that was read already was cut out
                log.seek(outputs.moved(read, size))
            elif not goes_on:
                break
            else:
                time.sleep(_LOOK_EVERY_S)
        if begun:
            yield begun


def end(paths: ClusterPaths, run: str) -> Record:
    """End a run as Ctrl-C would, and wait for it; a run that has ended stays as it is.

    Raises:
        PrerequisiteMissing: It was started on another machine, or by another user.
        GpubedError: It does not end.
    """
    folder = paths.runs / run
    who = runlock.holder(folder)
    if who is None:
        return record.read(folder)
    _end(folder / record.LOCK, f"run {run}", who)
    return record.read(folder)


def end_training(paths: ClusterPaths, training: str) -> None:
    """End a training with its current run, if any, and wait for it.

    Raises:
        PrerequisiteMissing: It was started on another machine, or by another user.
        GpubedError: It does not end.
    """
    lock = checkpoints.lock(paths, training)
    if who := runlock.holder_of(lock):
        _end(lock, f"training {training}", who)


def _end(lock: Path, what: str, who: Holder) -> None:
    _interrupt(lock, what, who)
    deadline = time.monotonic() + _END_S
    while runlock.holder_of(lock):
        if time.monotonic() > deadline:
            raise GpubedError(
                f"{what} (pid {who.pid}) does not end",
                f"kill -9 {who.pid}: its ranks end a minute later",
            )
        time.sleep(_LOOK_EVERY_S)


def _interrupt(lock: Path, what: str, who: Holder) -> None:
    here = socket.gethostname()
    if who.host not in ("", here):
        raise PrerequisiteMissing(
            f"{what} was started on {who.host}, and this is {here}",
            f"the same command on {who.host}",
        )
    try:
        if runlock.has_open(who.pid, lock):
            os.kill(who.pid, signal.SIGINT)
            return
    except PermissionError:
        raise PrerequisiteMissing(
            f"{what} is {who.user}'s", f"the same command as {who.user}"
        ) from None
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has just ended, or cannot be seen from here
    if runlock.holder_of(lock):
        raise PrerequisiteMissing(
            f"whoever is at {what} is out of sight: {who}",
            "the same command where it was started: in the same container, if it was in one",
        )

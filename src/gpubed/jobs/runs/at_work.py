"""Runs that are at work: followed by what they say, and ended from elsewhere.

Whoever runs a job holds the lock of the run's folder, and that says who it is.
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
_LONGEST_LINE = 2**21  # characters; what launchers hand on is shorter
_END_S = 120.0  # Slurm and testbeds that run jobs take their time to cancel one


def of_process(paths: ClusterPaths, process: int, since: str) -> Record | None:
    """Return the run that a process is at, as soon as it has a record.

    Args:
        since: The name that a run would have had which started before all that are meant.
    """
    for folder in paths.runs.glob("*"):
        if folder.name >= since and (who := runlock.holder(folder)) and who.pid == process:
            try:
                return record.read(folder)
            except Unreadable:
                return None  # its first line is being written
    return None


def outlive_nodes(paths: ClusterPaths) -> bool:
    """Say whether what runs on a cluster goes on by itself where nodes are repaired under it."""
    return bool(checkpoints.trainings(paths)) and ends_with_nodes(paths) is None


def ends_with_nodes(paths: ClusterPaths) -> Record | None:
    """Return a run at work that ends where a node is restarted under it; None where none does."""
    running = (one for one in record.every(paths)[0].values() if one.state == "running")
    return next((one for one in running if not one.elastic), None)


def training_of(paths: ClusterPaths, run: Record) -> str:
    """Return the training, at work or waiting, that a run is or was a part of; else empty."""
    there = checkpoints.trainings(paths) if run.elastic else {}
    return next((name for name in checkpoints.of(run) if name in there), "")


def parts(paths: ClusterPaths, training: str) -> list[Record]:
    """Return the runs of a training that there are so far, oldest first."""
    every = record.every(paths)[0].values()
    return [one for one in every if one.elastic and training in checkpoints.of(one)]


def next_part(paths: ClusterPaths, run: Record) -> Record | None:
    """Wait for the run that goes on where a part of a training ended; None where none comes."""
    while True:
        training = training_of(paths, run)
        following = (one for one in record.every(paths)[0].values() if one.elastic)
        if found := next((one for one in following if one.resumes == run.run_id), None):
            return found
        if not training:
            return None
        time.sleep(_LOOK_EVERY_S)


def output(paths: ClusterPaths, run: str, *, follow: bool = False) -> Iterator[str]:
    """Give the lines that a job printed; with `follow` those to come, too, until the run ends.

    Raises:
        GpubedError: Nothing of what it printed is there.
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
            # Asked first: what was printed before the end is read after it.
            goes_on = follow and runlock.holder(folder) is not None
            while part := log.readline(_LONGEST_LINE):
                begun += part
                # One that is longer is given in pieces: it may be as large as its job liked.
                if begun.endswith("\n") or len(begun) >= _LONGEST_LINE:
                    yield begun.rstrip("\n")
                    begun = ""
            read, size = file.tell(), os.fstat(file.fileno()).st_size
            if size < read:  # what was read already is left out by now
                log.seek(outputs.moved(read, size))
            elif not goes_on:
                break
            else:
                time.sleep(_LOOK_EVERY_S)
        if begun:
            yield begun


def end(paths: ClusterPaths, run: str) -> Record:
    """End a run as Ctrl-C would where it was started, and wait for that; an ended one stays.

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
    """End a training with the run that it is at, if it is at one, and wait for that.

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

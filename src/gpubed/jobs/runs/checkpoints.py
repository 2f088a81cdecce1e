"""The checkpoint folders of runs, and their locks: a folder has one writer at a time.

A writer is a run or an elastic training (`gpubed run --elastic`). A training also holds its lock
while it waits for nodes, so that it can be found and ended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from gpubed.core import runlock
from gpubed.core.errors import GpubedError, Locked
from gpubed.core.paths import ClusterPaths
from gpubed.core.runlock import Holder
from gpubed.jobs import jobfile
from gpubed.jobs.checkpoint_files import folder_fault, folder_name, folder_of_lock, lock_name
from gpubed.jobs.jobfile import Job
from gpubed.jobs.runs.record import Record

ELASTIC = "run --elastic"
"""The verb in the lock of an elastic training."""


def folders(job: Job, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the checkpoint folders that a run with these arguments reads and writes."""
    given = (values.get(name) for name, argument in job.arguments.items() if argument.resumes)
    # Former versions recorded other spellings; an edited `job.yml` may have other types.
    names = (name for name in given if isinstance(name, str) and not folder_fault(name))
    return tuple(map(folder_name, names))


def of(record: Record) -> tuple[str, ...]:
    """Return the checkpoint folders of a run; none if its job is gone."""
    with suppress(GpubedError):
        return folders(jobfile.of(record.request), record.values)
    return ()


@contextmanager
def kept(paths: ClusterPaths, names: Iterable[str], verb: str) -> Iterator[None]:
    """Hold the locks of checkpoint folders.

    Raises:
        Locked: Another run or a waiting training holds one.
    """
    with ExitStack() as held:
        for name in names:
            try:
                held.enter_context(runlock.locked(lock(paths, name), verb))
            except Locked:
                raise Locked(
                    f"checkpoints {name} belong to {writer(paths, name) or 'another run'}: "
                    "two writers would damage them",
                    f"gpubed cancel {paths.name}, or wait for its end",
                ) from None
        yield


def writer(paths: ClusterPaths, name: str) -> Holder | None:
    """Return the process that writes a folder, if any."""
    return runlock.holder_of(lock(paths, name))


def trainings(paths: ClusterPaths) -> dict[str, Holder]:
    """Return the processes of elastic trainings, running or waiting for nodes, by folder."""
    holders = {path: runlock.holder_of(path) for path in sorted(paths.writers.glob("*"))}
    return {
        folder_of_lock(path.name): holder
        for path, holder in holders.items()
        if holder and holder.verb == ELASTIC
    }


def lock(paths: ClusterPaths, name: str) -> Path:
    """Return the path of a folder's lock."""
    return paths.writers / lock_name(name)


def collected(paths: ClusterPaths, name: str) -> Path | None:
    """Return the local path of a checkpoint folder's newest copy; None if there is none."""
    places = paths.checkpoints.glob(f"*/{lock_name(name)}")
    return max((place for place in places if any(place.glob("[!.]*"))), default=None)

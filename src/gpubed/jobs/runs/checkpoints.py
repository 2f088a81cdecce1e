"""Folders of checkpoints: what a run keeps in which, and one writer for each at a time.

A writer is a run, or a training that goes on run by run (`gpubed run --elastic`): that one keeps
its folders for itself also while it waits for nodes, and can be found and ended by them then.
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
from gpubed.jobs import checkpoint_folder, jobfile
from gpubed.jobs.jobfile import Job
from gpubed.jobs.runs.record import Record

ELASTIC = "run --elastic"
"""The verb of a training that goes on run by run, as its locks have it."""


def folders(job: Job, values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the folders of checkpoints that a run with such arguments goes on from, and fills."""
    given = (values.get(name) for name, argument in job.arguments.items() if argument.resumes)
    # A record of a former version has them as they were typed, and one of another `job.yml` may
    # have values of another kind by these names.
    names = (name for name in given if isinstance(name, str) and not checkpoint_folder.fault(name))
    return tuple(map(checkpoint_folder.plain, names))


def of(record: Record) -> tuple[str, ...]:
    """Return the folders of a run; none where its job is no more."""
    with suppress(GpubedError):
        return folders(jobfile.of(record.request), record.values)
    return ()


@contextmanager
def kept(paths: ClusterPaths, names: Iterable[str], verb: str) -> Iterator[None]:
    """Be the only writer of folders.

    Raises:
        Locked: Another run writes one, or a training waits to go on with it.
    """
    with ExitStack() as held:
        for name in names:
            try:
                held.enter_context(runlock.locked(lock(paths, name), verb))
            except Locked:
                raise Locked(
                    f"checkpoints {name} are those of {writer(paths, name) or 'another run'}: "
                    "two that write them would damage them",
                    f"gpubed cancel {paths.name}, or wait for its end",
                ) from None
        yield


def writer(paths: ClusterPaths, name: str) -> Holder | None:
    """Say who writes a folder; None where nobody does."""
    return runlock.holder_of(lock(paths, name))


def trainings(paths: ClusterPaths) -> dict[str, Holder]:
    """Return the trainings that go on run by run, at work or waiting, by their folders."""
    found = {}
    for path in sorted(paths.writers.glob("*")):
        who = runlock.holder_of(path)
        if who and who.verb == ELASTIC:
            found[checkpoint_folder.of_lock(path.name)] = who
    return found


def lock(paths: ClusterPaths, name: str) -> Path:
    """Return the lock of who writes a folder."""
    return paths.writers / checkpoint_folder.lock_name(name)


def collected(paths: ClusterPaths, name: str) -> Path | None:
    """Return where what was collected last of a folder is, here; None where nothing was."""
    places = paths.checkpoints.glob(f"*/{checkpoint_folder.lock_name(name)}")
    return max((place for place in places if any(place.glob("[!.]*"))), default=None)

"""Finds runs that shared nodes at the same time: each distorts the other's measurements."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.jobs import jobfile
from gpubed.jobs.runs import record
from gpubed.jobs.runs.record import Record


def found(paths: ClusterPaths, run: Record) -> list[str]:
    """Return the runs that shared nodes with a run that ends now, oldest first.

    Runs started elsewhere, such as in JupyterLab, have no record on this controller.
    """
    return [
        one.run_id
        for folder, one in record.every(paths)[0].items()
        if one.run_id != run.run_id and _shared(one, run) and _end(folder, one) > run.started
    ]


def _shared(one: Record, other: Record) -> bool:
    nodes = {host.id for host in one.origin.hosts if host.slots}
    if nodes.isdisjoint(host.id for host in other.origin.hosts if host.slots):
        return False
    return not (_queued(one) and _queued(other))


def _queued(run: Record) -> bool:
    """Return whether Slurm started a run; it gives nodes to one job at a time."""
    try:
        return (run.request.launcher or jobfile.of(run.request).launcher) == "slurm"
    except GpubedError:
        return False  # its job does not exist any more


def _end(folder: Path, run: Record) -> datetime:
    """Return the time of a run's end; for a killed run, of its last output."""
    if run.state == "running":
        return record.now()
    if run.seconds is not None:
        return run.started + timedelta(seconds=run.seconds)
    try:
        return datetime.fromtimestamp((folder / record.OUTPUT).stat().st_mtime, run.started.tzinfo)
    except OSError:
        return run.started

"""Implements `gpubed run --detach` by running the same command in the background."""

import math
import sys
import time
from pathlib import Path

from gpubed.cli import background
from gpubed.cli.ui import UI
from gpubed.core.paths import ClusterPaths
from gpubed.jobs import execution
from gpubed.jobs.runs import at_work, checkpoints
from gpubed.jobs.runs.record import Record

_DETACH = ("--detach", "-d")
_LOOK_EVERY_S = 0.1
_WAITS_S = 10.0  # a training that has not begun a run by then is waiting for nodes


def run(ui: UI, paths: ClusterPaths) -> int:
    """Start the same command in the background, and print the name of its run."""
    since, process = execution.name_run(""), _again(paths)
    while not (begun := at_work.of_process(paths, process.id, since)):
        if (code := process.ended()) is not None:
            return _ended_early(ui, process, code)
        time.sleep(_LOOK_EVERY_S)
    return _tell_begun(ui, paths, process, begun)


def training(ui: UI, paths: ClusterPaths) -> int:
    """Start an elastic training in the background; print its run, unless it waits for nodes."""
    since, process, until = execution.name_run(""), _again(paths), math.inf
    while time.monotonic() < until:
        if begun := at_work.of_process(paths, process.id, since):
            return _tell_begun(ui, paths, process, begun)
        if (code := process.ended()) is not None:
            return _ended_early(ui, process, code)
        if until == math.inf and _has_training(paths, process.id):
            until = time.monotonic() + _WAITS_S
        time.sleep(_LOOK_EVERY_S)
    return _tell_waiting(ui, paths, process)


def _again(paths: ClusterPaths) -> background.Started:
    return background.start(background.without(sys.argv[1:], _DETACH), log(paths))


def log(paths: ClusterPaths) -> Path:
    """Return the log file of background runs."""
    return paths.logs / "run.log"


def _ended_early(ui: UI, process: background.Started, code: int) -> int:
    ui.note(process.said(), whole=True)
    return code


def _tell_begun(ui: UI, paths: ClusterPaths, process: background.Started, begun: Record) -> int:
    folder = str(paths.runs / begun.run_id)
    ui.document("run", {**begun.document(), "run_dir": folder, "pid": process.id})
    ui.say(f"{begun.run_id} goes on in the background (pid {process.id})")
    ui.note(f"  gpubed logs {paths.name} {begun.run_id} -f   shows what it prints", whole=True)
    ui.note(f"  gpubed cancel {paths.name} {begun.run_id}   ends it", whole=True)
    return 0


def _has_training(paths: ClusterPaths, process: int) -> bool:
    return any(who.pid == process for who in checkpoints.trainings(paths).values())


def _tell_waiting(ui: UI, paths: ClusterPaths, process: background.Started) -> int:
    ui.document("run", {"run_id": None, "status": "waiting", "pid": process.id})
    ui.note(process.said(), whole=True)
    ui.say(f"it goes on in the background (pid {process.id}) once it can")
    ui.note(f"  gpubed cancel {paths.name}   ends it", whole=True)
    return 0

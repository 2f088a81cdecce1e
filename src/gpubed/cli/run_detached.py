"""Implements `gpubed run --detach` by running the same command in the background."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from gpubed.cli.ui import UI
from gpubed.core.paths import ClusterPaths
from gpubed.jobs import execution
from gpubed.jobs.runs import active, checkpoints

_PROGRAM = "from gpubed.cli import main; main()"
_DETACH = ("--detach", "-d")
_POLL_S = 0.1
_WAITS_S = 10.0  # a training that has not begun a run by then is waiting for nodes


@dataclass(frozen=True)
class Started:
    """A background process; its output begins at byte `offset` of its log."""

    process: subprocess.Popen[bytes]
    log: Path
    offset: int

    def output(self) -> str:
        """Return the output so far."""
        return self.log.read_bytes()[self.offset :].decode(errors="replace").strip()


def start(words: list[str], log: Path) -> Started:
    """Start gpubed with these arguments in a new session; its output is appended to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as kept:
        offset = kept.tell()
        process = subprocess.Popen(
            # -P: modules in the project's folder must not shadow Python's own.
            [sys.executable, "-P", "-c", _PROGRAM, *words],
            stdin=subprocess.DEVNULL,
            stdout=kept,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that the terminal's signals do not reach it
        )
    return Started(process, log, offset)


def writes_to(log: Path) -> bool:
    """Return whether stderr of this process goes to the log, as after `start`."""
    try:
        return os.path.samestat(os.fstat(sys.stderr.fileno()), log.stat())
    except OSError:  # the log does not exist, or stderr is not a file
        return False


def log(paths: ClusterPaths) -> Path:
    """Return the log file of background runs."""
    return paths.logs / "run.log"


def run(ui: UI, paths: ClusterPaths) -> int:
    """Start this command in the background, and print the name of its run.

    An elastic training that waits for nodes has no run yet.
    """
    since = execution.name_run("")
    words = sys.argv[1:]
    end = words.index("--") if "--" in words else len(words)  # the job's arguments follow
    own = [word for word in words[:end] if word not in _DETACH]
    started = start([*own, *words[end:]], log(paths))
    pid, until = started.process.pid, math.inf
    while time.monotonic() < until:
        if begun := active.of_process(paths, pid, since):
            folder = str(paths.runs / begun.run_id)
            ui.document("run", {**begun.document(), "run_dir": folder, "pid": pid})
            ui.say(f"{begun.run_id} goes on in the background (pid {pid})")
            follow = f"gpubed logs {paths.name} {begun.run_id} -f"
            ui.note(f"  {follow}   shows what it prints", whole=True)
            ui.note(f"  gpubed cancel {paths.name} {begun.run_id}   ends it", whole=True)
            return 0
        if (code := started.process.poll()) is not None:
            ui.note(started.output(), whole=True)
            return code
        trainings = checkpoints.trainings(paths).values() if until == math.inf else ()
        if any(training.pid == pid for training in trainings):
            until = time.monotonic() + _WAITS_S
        time.sleep(_POLL_S)
    ui.document("run", {"run_id": None, "status": "waiting", "pid": pid})
    ui.note(started.output(), whole=True)
    ui.say(f"the training waits for nodes in the background (pid {pid})")
    ui.note(f"  gpubed cancel {paths.name}   ends it", whole=True)
    return 0

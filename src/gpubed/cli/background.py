"""Runs a verb in the background, where it continues after its terminal is closed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = "from gpubed.cli import main; main()"


@dataclass(frozen=True)
class Started:
    """A background process; its output begins at byte `offset` of its log."""

    process: subprocess.Popen[bytes]
    log: Path
    offset: int

    @property
    def id(self) -> int:
        """The process id."""
        return self.process.pid

    def ended(self) -> int | None:
        """Return the exit code, or None while the process runs."""
        return self.process.poll()

    def said(self) -> str:
        """Return the output so far."""
        with self.log.open("rb") as log:
            log.seek(self.offset)
            return log.read().decode(errors="replace").strip()


def start(words: Sequence[str], log: Path) -> Started:
    """Start gpubed with other arguments in a new session; its output is appended to `log`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as kept:
        offset = kept.tell()
        process = subprocess.Popen(
            # -P: a module of the project's folder must not stand in for one of Python's.
            [sys.executable, "-P", "-c", _PROGRAM, *words],
            stdin=subprocess.DEVNULL,
            stdout=kept,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # keeps signals of the terminal from it
        )
    return Started(process, log, offset)


def is_said_into(log: Path) -> bool:
    """Return whether the output of this process goes to the log, as after `start`."""
    try:
        return os.path.samestat(os.fstat(sys.stderr.fileno()), log.stat())
    except OSError:  # the log does not exist, or stderr is not a file
        return False


def without(words: Sequence[str], flags: Collection[str]) -> list[str]:
    """Remove flags from a command line, except after `--`, where a job's arguments are."""
    own = list(words)
    behind = own.index("--") if "--" in own else len(own)
    return [word for word in own[:behind] if word not in flags] + own[behind:]

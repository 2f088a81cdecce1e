"""A verb that goes on when the terminal that it was started from is closed."""

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
    """What goes on; `offset` is where in its log its own words begin, in bytes."""

    process: subprocess.Popen[bytes]
    log: Path
    offset: int

    @property
    def id(self) -> int:
        """Its process id."""
        return self.process.pid

    def ended(self) -> int | None:
        """Return its exit code; None while it goes on."""
        return self.process.poll()

    def said(self) -> str:
        """Return what it has said so far."""
        with self.log.open("rb") as log:
            log.seek(self.offset)
            return log.read().decode(errors="replace").strip()


def start(words: Sequence[str], log: Path) -> Started:
    """Start gpubed with other words, in a session of its own.

    Args:
        words: The verb and what follows it.
        log: What it says is added there.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as kept:
        offset = kept.tell()
        process = subprocess.Popen(
            # -P: a module of the project's folder must not stand in for one of Python's.
            [sys.executable, "-P", "-c", _PROGRAM, *words],
            stdin=subprocess.DEVNULL,
            stdout=kept,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # no signal of the terminal's reaches it
        )
    return Started(process, log, offset)


def is_said_into(log: Path) -> bool:
    """Say whether what this process says is added to a log, as `start` has it."""
    try:
        return os.path.samestat(os.fstat(sys.stderr.fileno()), log.stat())
    except OSError:  # there is no such log, or no file behind stderr
        return False


def without(words: Sequence[str], flags: Collection[str]) -> list[str]:
    """Return the words of a command line less its flags; those behind `--` are a job's."""
    own = list(words)
    behind = own.index("--") if "--" in own else len(own)
    return [word for word in own[:behind] if word not in flags] + own[behind:]

"""Follows the output of a job, line by line; jobs of Slurm by scripts where its commands are."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from io import TextIOWrapper
from typing import cast

from gpubed.core.paths import assets

OnOutput = Callable[[str], None]
SSH_FAILED = 255
"""OpenSSH's own exit code: of a connection that was lost, or never came about."""
OF_RANK = re.compile(r"\[(?:\d+,)?(\d{1,6})\]<(stdout|stderr)>:(.*)", re.DOTALL)
"""A line of a rank: number, stream and text. MPI prefixes it with the number of the job, too."""
# What a rank printed without a line end is followed by a line of another one.
_GLUED = re.compile(r"(?<=.)(?=\[(?:\d+,)?\d{1,6}\]<(?:stdout|stderr)>:)")
_LONGEST_LINE = 2**16  # characters
SLURM_LOG, SLURM_CANCELLED, SLURM_END = "slurm.log", ".cancelled", "ended: JobState="
"""The output in a run's folder, the mark of a run that must not start, and how an end is told."""
_PATIENCE_S = 600  # for which Slurm may give no answer about a job
# slurmctld may be restarting, so repeat until it reports an empty queue, or the time is up.
_CANCEL = (
    f"cd {{folder}} && {{lock}}touch {SLURM_CANCELLED}; end=$(($(date +%s) + {{patience}})); "
    "until scancel --name={name}; queue=$(squeue --noheader --name={name}) && "
    '[ -z "$queue" ]; do [ $(date +%s) -lt $end ] || exit 1; sleep 0.5; done'
)


def parted(line: str) -> list[str]:
    """Return the lines of several ranks that came as one."""
    return _GLUED.split(line) if OF_RANK.match(line) else [line]


def lines(stream: TextIOWrapper) -> Iterator[str]:
    """Yield each line that a job prints; a very long one in pieces, to bound memory.

    A line that a carriage return ended, which the next one of its stream replaces, keeps it.
    """
    stream.reconfigure(newline="")
    goes_on = False
    while piece := stream.readline(_LONGEST_LINE):
        if not (goes_on and piece in ("\n", "\r\n")):  # the line end of the piece before
            ended = piece.endswith(("\n", "\r"))
            *others, last = parted(piece.rstrip() if ended else piece)
            yield from others
            yield last + "\r" * piece.endswith("\r")
        goes_on = not piece.endswith(("\n", "\r"))


def follow(command: Sequence[str], on_output: OnOutput) -> int:
    """Run a command to its end, passing on each line; return its exit code.

    An interruption kills the command here; the caller ends what it started elsewhere.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout  # noqa: S101
    try:
        for line in lines(cast("TextIOWrapper", process.stdout)):
            on_output(line)
        return process.wait()
    finally:
        process.kill()
        process.wait()


def slurm_follow(folder: str, job: str, every_s: int = 1, lines: str = "+1") -> str:
    """Return the script that prints what a job of Slurm writes to `SLURM_LOG`; see `follow.sh`."""
    words = shlex.join([folder, job, str(every_s), lines, str(_PATIENCE_S)])
    return f"set -- {words}\n{(assets() / 'templates/slurm/follow.sh').read_text()}"


def slurm_cancel(folder: str, name: str, patience_s: int, lock: str = "") -> str:
    """Return a script that cancels the jobs of a name, and fails if some are left in the queue.

    `lock` is the beginning of a command that holds a lock.
    """
    return _CANCEL.format(folder=shlex.quote(folder), name=name, patience=patience_s, lock=lock)

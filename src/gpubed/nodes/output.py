"""Follows the output of a job line by line; scripts that follow and cancel jobs of Slurm."""

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
"""Exit code of `ssh` for a connection that failed or was lost."""
OF_RANK = re.compile(r"\[(?:\d+,)?(\d{1,6})\]<(stdout|stderr)>:(.*)", re.DOTALL)
"""A line of a rank: number, stream and text. MPI writes the number of the job before the rank's."""
# Text without a line end, followed on its line by the output of another rank.
_GLUED = re.compile(r"(?<=.)(?=\[(?:\d+,)?\d{1,6}\]<(?:stdout|stderr)>:)")
_LONGEST_LINE = 2**16  # characters
SLURM_LOG, SLURM_CANCELLED, SLURM_END = "slurm.log", ".cancelled", "ended: JobState="
"""The output and the mark of a cancelled run, in the run's folder; the line that reports an end."""
_PATIENCE_S = 600  # how long Slurm may fail to answer about a job
# slurmctld may be restarting: repeats until the queue is empty, or the time is over.
_CANCEL = (
    f"cd {{folder}} && {{lock}}touch {SLURM_CANCELLED}; end=$(($(date +%s) + {{patience}})); "
    "until scancel --name={name}; queue=$(squeue --noheader --name={name}) && "
    '[ -z "$queue" ]; do [ $(date +%s) -lt $end ] || exit 1; sleep 0.5; done'
)


def lines(stream: TextIOWrapper) -> Iterator[str]:
    r"""Yield each line that a job prints; a very long one in pieces, to bound memory.

    Lines that end with `\r`, which the next line of their stream replaces, keep it. Lines of
    several ranks that were printed as one are yielded one by one.
    """
    stream.reconfigure(newline="")
    is_open = False  # whether the last piece had no line end
    while piece := stream.readline(_LONGEST_LINE):
        ended = piece.endswith(("\n", "\r"))
        if not (is_open and piece in ("\n", "\r\n")):  # the line end of the last piece
            text = piece.rstrip() if ended else piece
            *others, last = _GLUED.split(text) if OF_RANK.match(text) else [text]
            yield from others
            yield last + "\r" * piece.endswith("\r")
        is_open = not ended


def follow(command: Sequence[str], on_output: OnOutput) -> int:
    """Run a command to its end, passing on each line; return its exit code.

    An exception, as of Ctrl-C, kills the local command only; the caller ends its remote processes.
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
    """Return a script that prints `SLURM_LOG` of a Slurm job until it ends; see `follow.sh`."""
    words = shlex.join([folder, job, str(every_s), lines, str(_PATIENCE_S)])
    return f"set -- {words}\n{(assets() / 'templates/slurm/follow.sh').read_text()}"


def slurm_cancel(folder: str, name: str, patience_s: int, lock: str = "") -> str:
    """Return a script that cancels all Slurm jobs of a name, and fails if some stay in the queue.

    `lock` is a prefix such as `flock FILE ` for the command that marks the run as cancelled.
    """
    return _CANCEL.format(folder=shlex.quote(folder), name=name, patience=patience_s, lock=lock)

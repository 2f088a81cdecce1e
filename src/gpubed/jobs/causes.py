"""Recognizes why a rank failed, by its exit code, its last output and the state of its node."""

from __future__ import annotations

import re
import signal
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field

from gpubed.core import files, reading
from gpubed.core.reading import Unreadable

ENDS = ".ends"
"""The folder of a run where `gpubed-exit` writes a file for each rank that failed."""
_LARGEST = 2**16  # bytes of such a file
_LONGEST = 200  # characters of a rank's last line
_BY_SIGNAL = 128  # shells report the end by a signal as 128 plus its number
_KILLED = re.compile(r"killed by signal: Killed|Signal 9\b|SIGKILL")
# Errors of ranks whose peer failed: consequences, never the cause of a failure.
CONSEQUENCE = re.compile(
    r"HorovodInternalError|Horovod has been shut down|Connection (?:closed|reset) by peer|"
    r"Broken pipe|NCCL.*(?:remote process exited|aborted|unhandled system error)|ncclRemoteError|"
    r"ChildFailedError|SignalException|KeyboardInterrupt|connectFullMesh failed|"
    r"Timed out waiting \d+ms for (?:recv|send)|Application timeout caused pair closure|"
    r"DistNetworkError: .*failed to (?:recv|send)|DistStoreError|collective operation timeout|"
    r"Rendezvous(?:Connection|Closed)Error"
)
_ABORTED = re.compile(r"terminate called |Aborted|Segmentation fault")  # C++ and shells
_SIZE = r"([\d.]+ \w+)"
# Kind of the cause, pattern of the last output, and message; {full} lists full file systems.
_KINDS = tuple(
    (kind, re.compile(pattern, re.DOTALL), words)
    for kind, pattern, words in (
        (
            "cuda_out_of_memory",
            rf"CUDA out of memory\. Tried to allocate {_SIZE}\.? \(?GPU (\d+)(?:;| has a total "
            rf"capac\w+ of) {_SIZE}(?: total capacity;.*?;| of which) {_SIZE}(?: is)? free",
            " ran out of memory of GPU {1}: asked for {0}, {3} of {2} are free",
        ),
        (
            "cuda_out_of_memory",
            r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED",
            " ran out of GPU memory",
        ),
        (
            "disk_full",
            r"insufficient shared memory|out of shared memory|killed by signal: Bus error|"
            r"allocate shared memory|(?:/torch_\d|/dev/shm)[^\n]*No space left|"
            r"No space left on device: '/dev/shm|SIGBUS",
            " ran out of shared memory: /dev/shm is too small for what it keeps there{full}",
        ),
        (
            "disk_full",
            r"No space left on device(?:: '([^'\n]+)')?",
            " found no space left{for0}{full}",
        ),
        ("disk_full", r"(?i)Disk quota exceeded(?:: '([^'\n]+)')?", " is over its quota{for0}"),
        (
            "missing_module",
            r"No module named '?(\w+)",
            ": No module named '{0}': add it to requirements.txt",
        ),
        (
            "missing_module",
            r"(\S+\.so[.\d]*): cannot open shared object file",
            " lacks the library {0}",
        ),
        (
            "missing_module",
            r"undefined symbol: (\w+)",
            " loads a library that was built for other versions: undefined symbol {0}",
        ),
        (
            "exit",
            r"can't open file '([^'\n]+)'",
            ": {0} is not on its node; only the folder where gpubed is called is copied",
        ),
        # torchrun's message about a process that it started.
        ("signal", r"Signal \d+ \((SIG(?!TERM)\w+)\) received", " was killed by {0}"),
    )
)


class Memory(BaseModel):
    """The memory limit of a killed rank (None if unknown) and the peak of its use, in bytes."""

    limit: Annotated[int, Field(ge=0, le=2**62)] | None
    peak: Annotated[int, Field(ge=0, le=2**62)]

    def __str__(self) -> str:
        if self.limit is None:
            return f" at {files.size(self.peak)}, and the kernel killed it"
        return f": {files.size(self.peak)} of {files.size(self.limit)}"


class End(BaseModel):
    """The end of a failed rank, as `gpubed-exit` on its node wrote it.

    Attributes:
        at: Time in seconds since 1970.
        code: Exit code; negative for the number of a signal.
        memory: Set if the kernel killed a process because memory ran out.
        full: Full file systems at that time, and their sizes in bytes.
    """

    at: Annotated[float, Field(ge=0, le=2**37)]
    code: Annotated[int, Field(ge=-64, le=255)]
    memory: Memory | None = None
    full: dict[reading.Line, Annotated[int, Field(ge=0, le=2**62)]] = {}

    @property
    def signal(self) -> str:
        """The name of the signal that ended the rank or its shell's child; else empty."""
        number = -self.code if self.code < 0 else self.code - _BY_SIGNAL
        try:
            return signal.Signals(number).name
        except ValueError:
            return ""


def ends(run: Path, ranks: int) -> dict[int, End]:
    """Return the ends of failed ranks, by rank; those that nodes could not write are missing."""
    found = {}
    for rank in range(ranks):
        try:
            found[rank] = reading.file(run / ENDS / str(rank), limit=_LARGEST).json(End)
        except Unreadable:
            continue
    return found


def recognized(output: str, end: End | None) -> tuple[str, str] | None:
    """Return the kind and the message of a cause that a pattern recognizes.

    Args:
        output: The exception that ended the rank, or its last lines.
    """
    if end and end.memory and (end.signal == "SIGKILL" or _KILLED.search(output)):
        return "out_of_memory", f" ran out of memory{end.memory}"
    places = end.full if end else {}
    if end and end.signal == "SIGBUS" and any("shm" in place for place in places):
        output += " SIGBUS"
    full = ", ".join(f"{place} ({files.size(size)})" for place, size in places.items())
    for kind, pattern, words in _KINDS:
        if found := pattern.search(output):
            groups = [text or "" for text in found.groups()]
            file = f" for {groups[0]}" if groups and groups[0] else ""
            return kind, words.format(*groups, for0=file, full=f"; full: {full}" if full else "")
    return None


def by_code(output: str, end: End) -> tuple[str, str] | None:
    """Return the kind and the message of a cause by exit code; None for a consequence."""
    if end.signal == "SIGTERM" or (end.signal in ("", "SIGABRT") and CONSEQUENCE.search(output)):
        return None
    lines = [line for line in output.splitlines() if line.strip() and not _ABORTED.match(line)]
    last = f"; its last line: {lines[-1].strip()[:_LONGEST]}" if lines else ""
    if end.signal:
        return "signal", f" was killed by {end.signal}{last}"
    return "exit", f" ended with exit code {end.code}{last}"

"""Separates the output of ranks from their launcher's, and finds the rank that failed first.

Horovod's launcher prefixes each line of a rank with rank and stream; its own lines have no prefix.
After a failure it prints a line for each rank that ends, and a traceback of its own code, of which
only the number of the failed rank is used.
"""

from __future__ import annotations

import math
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpubed.core import reading
from gpubed.jobs import causes
from gpubed.jobs.causes import CONSEQUENCE, End
from gpubed.jobs.runs.record import Cause
from gpubed.nodes.output import OF_RANK, SSH_FAILED

_TRACEBACK = "Traceback (most recent call last):"
# torch prefixes each line of a traceback with the rank.
_OF_TORCH = re.compile(r"\[rank(\d{1,6})\]: ?")
_FRAME = re.compile(r'\s+File "(.+)", line (\d+)')
_LIBRARY = re.compile(r"/site-packages/|/dist-packages/|/lib/python3")
_IN_RUN = re.compile(r".*/runs/[^/]+/")
_FAILED = "Horovod detected that one or more processes exited with non-zero status"
_NAMED = re.compile(r"(Process name|Exit code): (-?\d{1,6})")
_OF_PROCESS = re.compile(
    r"Process \d{1,6} exit with status code -?\d{1,6}\.|"
    r"Terminating remaining workers after failure of Process \d{1,6}\."
)
# Messages of OpenSSH, which starts ranks on other nodes.
_LOST = re.compile(
    r"Connection (?:to|closed|reset)|Read from remote host|Timeout, server|ssh: connect to host|"
    r"client_loop:|kex_exchange_identification:"
)
_OWN = re.compile(r"\w+(?:ResetError|PipeError|AbortedError)\b")  # raised by Python's own sockets
# Horovod's warning of ranks that others wait for, and its message before it gives up
# (stall_inspector.cc).
_STALLED = "are waiting for remainder of ranks for more than"
_MISSING = re.compile(r"(\d{1,6})!?: \[([^\],]+)")
_GIVES_UP = re.compile(r"is stalled for longer than (\d{1,9}) seconds")
# Lines on stderr that are searched for a cause, and those that are shown.
_KEPT, _LAST = 60, 10
_LONGEST, _MESSAGE = 2000, 300  # characters of a line that are kept, and of a message
_MOST = 4096  # ranks that wait, and streams with updates
_NEW_STALL_S = 150.0  # Horovod warns of a stall every minute while it lasts


def is_stdout(line: str) -> bool:
    """Return whether a rank printed a line on stdout.

    On stderr, Horovod itself warns every minute of ranks that wait for a stuck rank.
    """
    of_rank = OF_RANK.fullmatch(line)
    return of_rank is not None and of_rank[2] == "stdout"


class Updates:
    """Reduces lines that carriage returns rewrite, such as progress bars, to their last state.

    An update ends with a carriage return; each stream of a rank has its own.
    """

    def __init__(self) -> None:
        self._now: dict[str, str] = {}

    def settle(self, line: str) -> str | None:
        """Return a line in its last state; None for an update."""
        of_rank = OF_RANK.match(line)
        stream = line[: of_rank.start(3)] if of_rank else ""
        is_blank = not line[len(stream) :].strip()
        if not line.endswith("\r"):
            before = self._now.pop(stream, line)
            return before if is_blank else line
        if not is_blank and (stream in self._now or len(self._now) < _MOST):
            self._now[stream] = line[:-1][:_LONGEST]
        return None

    def rest(self) -> list[str]:
        """Return the last states of lines that have no end."""
        return list(self._now.values())


@dataclass(frozen=True)
class _Raised:
    """An exception that may have ended a rank.

    Attributes:
        rank: The rank that raised it; differs from the process if that starts ranks itself.
        message: The last line of its traceback.
        where: File and line in parentheses; of the run's own files if the traceback has one.
        at: Time of printing, in seconds since 1970.
    """

    rank: int
    message: str
    where: str
    at: float


@dataclass(frozen=True)
class _Found:
    kind: str
    words: str
    process: int
    rank: int
    at: float = math.inf


@dataclass
class _Process:
    """The last lines of a process on stderr, and its exceptions.

    Attributes:
        frames: Frames of an unfinished traceback.
        raised: Its last exception that is no consequence of another rank's end.
        lost: Its last exception that is such a consequence.
    """

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))
    frames: list[str] | None = None
    raised: _Raised | None = None
    lost: _Raised | None = None


class RankOutput:
    """Reads the lines of a run: formats them for people, and finds the cause of a failure.

    Args:
        ranks: Number of ranks. Lines of higher ranks are ignored, as jobs can print such lines.

    Attributes:
        code: The exit code of the first rank that failed; None if the launcher reports none.
        rank: The number of that rank.
        missing: Ranks that others wait for, with the tensor of the wait, by Horovod's warning.
        stalls: Number of stalls; one with other ranks or tensors than the last counts as new.
        places: Where in their code ranks are at the last stall, as far as known.
        is_cut_off: Whether SSH reported that the connection to the head ended.
    """

    def __init__(self, ranks: int = 0) -> None:
        self._ranks = range(ranks)
        self.code: int | None = None
        self.rank: int | None = None
        self.missing: dict[int, str] = {}
        self.stalls, self.places = 0, dict[int, str]()
        self._tagged = self._in_traceback = self.is_cut_off = False
        self._processes: dict[int, _Process] = {}
        self._warner, self._waited_s, self._warned = -1, 0, 0.0
        self._before: dict[int, str] = {}
        self._first: int | None = None

    def read(self, line: str) -> str | None:
        """Return a line to show; None for updates, and the launcher's lines about ended ranks."""
        if line.endswith("\r"):
            return None
        of_rank = OF_RANK.fullmatch(line)
        if of_rank is None:
            self.is_cut_off = self.is_cut_off or bool(_LOST.match(line))
            return None if self._is_launchers(line) else line
        self._tagged, rank, text = True, int(of_rank[1]), of_rank[3][:_LONGEST]
        if of_rank[2] == "stderr" and text.strip():
            self._read_warning(rank, text)
            if rank in self._ranks:
                process = self._processes.setdefault(rank, _Process())
                process.lines.append(text)
                _trace(process, rank, text)
        return f"rank {rank}: {of_rank[3]}"

    @property
    def last_words(self) -> list[str]:
        """The last lines on stderr of the rank that failed first, once its cause is known."""
        return self._lines(self.rank if self._first is None else self._first)[-_LAST:]

    @property
    def lost_its_node(self) -> bool:
        """Whether the first rank failed because SSH lost the connection to its node."""
        return self.code == SSH_FAILED and any(map(_LOST.match, self._lines(self.rank)[-_LAST:]))

    def cause(self, nodes: Sequence[str], ends: Mapping[int, End]) -> Cause | None:
        """Return the cause of the first failure; None if it is unknown.

        This is the earliest end that is no consequence of another end: ranks that wait for the
        failed rank may end before it.

        Args:
            nodes: The node of each process.
            ends: The ends of failed processes that their nodes could write.
        """
        every = range(len(nodes))
        own = [found for process in every if (found := self._own(process, ends.get(process)))]
        # Ends with a node's time come first: its clock may differ from the controller's.
        first = min(own, key=lambda found: (found.process not in ends, found.at), default=None)
        if self.lost_its_node and self.rank not in ends:
            words = f" or the connection to it was lost, and rank {self.rank} with it"
            first = _Found("node_lost", words, self.rank or 0, self.rank or 0)
        elif not own and self._waited_s and self.missing:
            rank, tensor = next(iter(self.missing.items()))
            words = f" did not come to {tensor}, where others waited for {self._waited_s} s"
            words += f"; it was at {self.places[rank]}" if rank in self.places else ""
            first = _Found("stall", words, rank, rank)
        first = first or self._last_resort(ends, every)
        if first is None or first.process not in every:
            return None
        self._first, node = first.process, nodes[first.process]
        subject = node if first.kind == "node_lost" else f"rank {first.rank} on {node}"
        at = None if first.at in (0, math.inf) else datetime.fromtimestamp(first.at, UTC)
        message = subject + first.words
        return Cause(kind=first.kind, rank=first.rank, node=node, message=message, at=at)

    def _lines(self, process: int | None) -> list[str]:
        return [*self._processes[process].lines] if process in self._processes else []

    def _own(self, process: int, end: End | None) -> _Found | None:
        """Return the cause of a process's end, unless it is a consequence of another end."""
        at, printed = end.at if end else math.inf, self._processes.get(process, _Process())
        raised = printed.raised
        if end is None and process == self.rank and self.code in range(1, SSH_FAILED):
            end = End(at=0, code=self.code or 0)
            # A rank may go on after a printed traceback; a killed rank prints none.
            at = 0 if end.signal == "SIGKILL" else at
        if end is None and raised is None:
            return None
        output = raised.message if raised else "\n".join(printed.lines)
        found = causes.recognized(output, end)
        if found and found[0] == "missing_module" and not raised:
            # In earlier lines, a missing module may be a warning.
            found = causes.recognized(printed.lines[-1], end)
        if raised:
            kind, words = found or ("exception", f": {reading.short(raised.message, _MESSAGE)}")
            at = min(at, raised.at) if end is None or not end.at else at
            return _Found(kind, words + raised.where, process, raised.rank, at)
        found = found or (causes.by_code(output, end) if end else None)
        return _Found(*found, process, process, at) if found else None

    def _last_resort(self, ends: Mapping[int, End], every: Sequence[int]) -> _Found | None:
        """Return the first end if all of them may be consequences of other ends."""
        lost = {process: self._processes.get(process, _Process()).lost for process in every}
        silent = [process for process, raised in lost.items() if not raised]
        # A script's own connections may break, too.
        sure = not any(raised and _OWN.match(raised.message) for raised in lost.values())
        ended = any(p in ends and ends[p].signal == "SIGTERM" for p in silent)
        if len(silent) == 1 < len(every) and sure and not ended:
            words = " ended first, or the others lost the connection to it"
            return _Found("exit", words, silent[0], silent[0])
        order = {process: (end.signal == "SIGTERM", end.at) for process, end in ends.items()}
        process = min(order, key=order.__getitem__, default=self.rank)
        if process is None or (self.code is None and not ends):
            return None
        if raised := lost.get(process):
            words = f": {raised.message}{raised.where}"
            return _Found("exception", words, process, raised.rank, raised.at)
        if process in ends:
            kind, words = causes.by_code("", ends[process]) or ("signal", " was ended by SIGTERM")
            return _Found(kind, words, process, process, ends[process].at)
        words = f" ended with exit code {self.code}"
        if self.code == SSH_FAILED:
            words = f" was killed, or{words}: SSH reports both alike"
        return _Found("exit", words, process, process)

    def _read_warning(self, rank: int, text: str) -> None:
        if _STALLED in text:
            before, self._warned = self._warned, time.monotonic()
            last = self.missing if self._warned - before < _NEW_STALL_S else {}
            self._warner, self._before, self.missing = rank, last, {}
        elif rank == self._warner:
            if (found := _MISSING.match(text)) and len(self.missing) < _MOST:
                self.missing.setdefault(int(found[1]), found[2])
                if len(self.missing) == 1 and not self.missing.items() <= self._before.items():
                    self.stalls, self.places = self.stalls + 1, {}
            elif found := _GIVES_UP.search(text):
                self._waited_s = int(found[1])

    def _is_launchers(self, line: str) -> bool:
        # Other launchers prefix no lines, so that a traceback may be of a rank.
        if self._tagged and _OF_PROCESS.fullmatch(line):
            return True
        if self._tagged and line == _TRACEBACK:
            self._in_traceback = True
        elif self._in_traceback and (named := _NAMED.fullmatch(line)):
            if named[1] == "Exit code":
                self.code = int(named[2])
            else:
                self.rank = int(named[2])
        elif line and not line.startswith(" ") and _FAILED not in line:
            self._in_traceback = False  # another error of the launcher, which must be shown
        return self._in_traceback


def _trace(process: _Process, rank: int, line: str) -> None:
    """Process a line that may be part of a traceback."""
    if of_torch := _OF_TORCH.match(line):
        rank, line = int(of_torch[1]), line[of_torch.end() :]
    if line.endswith(_TRACEBACK):  # a progress bar may precede it on the line
        process.frames = []
    elif process.frames is None and (frame := _FRAME.fullmatch(line)):  # of a SyntaxError
        process.frames = [f"{_IN_RUN.sub('', frame[1])}:{frame[2]}"]
    elif process.frames is None:
        return
    elif frame := _FRAME.match(line):
        process.frames.append(f"{_IN_RUN.sub('', frame[1])}:{frame[2]}")
    elif not line.startswith(" "):
        own = [frame for frame in process.frames if not _LIBRARY.search(frame)]
        where = "".join(f" ({frame})" for frame in (own or process.frames)[-1:])
        raised = _Raised(rank, line, where, time.time())
        process.frames = None
        if CONSEQUENCE.search(line):
            process.lost = raised
        else:
            process.raised = raised

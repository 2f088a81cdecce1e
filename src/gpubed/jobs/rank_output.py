"""Tells the output of ranks from that of their launcher, and finds the rank that failed first.

Horovod's launcher prefixes each line of a rank with rank and stream, and leaves its own lines as
they are. After a failure it reports each rank that ends, and a traceback of its own code; of these,
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
# Horovod's warning of ranks that others wait for, and its last words where it gives up
# (stall_inspector.cc).
_OWN = re.compile(r"\w+(?:ResetError|PipeError|AbortedError)\b")
_STALLED = "are waiting for remainder of ranks for more than"
_MISSING = re.compile(r"(\d{1,6})!?: \[([^\],]+)")
_GIVES_UP = re.compile(r"is stalled for longer than (\d{1,9}) seconds")
# Lines on stderr that are searched for a cause, and those that are shown.
_KEPT, _LAST = 60, 10
_LONGEST, _MESSAGE = 2000, 300  # characters of a line that are kept, and of a message
_MOST = 4096  # ranks that wait, and streams with updates
_NEW_STALL_S = 150.0  # Horovod warns of a stall every minute while it lasts


def is_said(line: str) -> bool:
    """Say whether a rank printed a line on stdout.

    Stderr does not count: Horovod itself warns there every minute of ranks that wait for a stuck
    one.
    """
    of_rank = OF_RANK.fullmatch(line)
    return of_rank is not None and of_rank[2] == "stdout"


class Updates:
    """Settles lines that carriage returns rewrite, such as progress bars: the last state stays.

    An update ends with a carriage return; it belongs to a stream of a rank.
    """

    def __init__(self) -> None:
        self._now: dict[str, str] = {}

    def settle(self, line: str) -> str | None:
        """Return a line in its last state; None for an update."""
        said = OF_RANK.match(line)
        stream = line[: said.start(3)] if said else ""
        is_blank = not line[len(stream) :].strip()
        if not line.endswith("\r"):
            before = self._now.pop(stream, line)
            return before if is_blank else line
        if not is_blank and (stream in self._now or len(self._now) < _MOST):
            self._now[stream] = line[:-1][:_LONGEST]
        return None

    def rest(self) -> list[str]:
        """Return the last states of lines that did not end."""
        return list(self._now.values())


@dataclass(frozen=True)
class _Raised:
    """An exception that may have ended a rank.

    Attributes:
        rank: The rank that raised it; differs from its process if that starts ranks itself.
        message: The last line of its traceback.
        where: File and line in parentheses, in the run's own files if one is in the traceback.
        at: When it was printed, in seconds since 1970.
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
        frames: Frames of the traceback that goes on.
        raised: Its last exception that is no consequence of another rank's end.
        lost: Its last exception that is one.
    """

    said: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))
    frames: list[str] | None = None
    raised: _Raised | None = None
    lost: _Raised | None = None


class RankOutput:
    """Reads the lines of a run: formats them for people, and finds out why it failed.

    Args:
        ranks: Number of ranks. As a job may print what looks like a line of another rank, nothing
            is kept of ranks beyond it.

    Attributes:
        code: The exit code of the first rank that failed; None if the launcher names none.
        rank: The number of that rank.
        missing: Ranks that others wait for, and the tensor at which they do, as Horovod warns.
        stalls: How often ranks began to wait, each time for others or elsewhere.
        places: Where in their code ranks are at the last stall, as far as that is known.
        is_cut_off: Whether SSH said that the connection to the head ended.
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
        """Return a line as it is shown; None for updates, and for the launcher's about ends."""
        if line.endswith("\r"):
            return None
        said = OF_RANK.fullmatch(line)
        if said is None:
            self.is_cut_off = self.is_cut_off or bool(_LOST.match(line))
            return None if self._is_launchers(line) else line
        self._tagged, rank, text = True, int(said[1]), said[3][:_LONGEST]
        if said[2] == "stderr" and text.strip():
            self._read_warning(rank, text)
            if rank in self._ranks:
                process = self._processes.setdefault(rank, _Process())
                process.said.append(text)
                _trace(process, rank, text)
        return f"rank {rank}: {said[3]}"

    @property
    def last_words(self) -> list[str]:
        """The last lines on stderr of the rank that failed first, once its cause is known."""
        return self._said(self.rank if self._first is None else self._first)[-_LAST:]

    @property
    def lost_its_node(self) -> bool:
        """Whether the first rank failed because SSH lost the connection to its node."""
        return self.code == SSH_FAILED and any(map(_LOST.match, self._said(self.rank)[-_LAST:]))

    def cause(self, nodes: Sequence[str], ends: Mapping[int, End]) -> Cause | None:
        """Return why the rank that failed first did; None if that is unknown.

        The earliest end counts that no other rank's end explains: ranks that wait for the failed
        one may end before it.

        Args:
            nodes: The node of each process.
            ends: How processes failed, as far as their nodes could write it.
        """
        every = range(len(nodes))
        own = [found for process in every if (found := self._own(process, ends.get(process)))]
        # Times of nodes and those of this machine do not compare.
        first = min(own, key=lambda one: (one.process not in ends, one.at), default=None)
        if self.lost_its_node and self.rank not in ends:
            told = f" went, or the connection to it did, and rank {self.rank} with it"
            first = _Found("node_lost", told, self.rank or 0, self.rank or 0)
        elif not own and self._waited_s and self.missing:
            rank, tensor = next(iter(self.missing.items()))
            told = f" did not come to {tensor}, where others waited for {self._waited_s} s"
            told += f"; it was at {self.places[rank]}" if rank in self.places else ""
            first = _Found("stall", told, rank, rank)
        first = first or self._last_resort(ends, every)
        if first is None or first.process not in every:
            return None
        self._first, node = first.process, nodes[first.process]
        subject = node if first.kind == "node_lost" else f"rank {first.rank} on {node}"
        at = None if first.at in (0, math.inf) else datetime.fromtimestamp(first.at, UTC)
        message = subject + first.words
        return Cause(kind=first.kind, rank=first.rank, node=node, message=message, at=at)

    def _said(self, process: int | None) -> list[str]:
        return [*self._processes[process].said] if process in self._processes else []

    def _own(self, process: int, end: End | None) -> _Found | None:
        """Return a cause of a process that is no consequence of another's end."""
        at, told = end.at if end else math.inf, self._processes.get(process, _Process())
        if end is None and process == self.rank and self.code in range(1, SSH_FAILED):
            end = End(at=0, code=self.code or 0)
            # A printed traceback need not have ended its rank; a killed rank prints none.
            at = 0 if end.signal == "SIGKILL" else at
        if end is None and told.raised is None:
            return None
        said = told.raised.message if told.raised else "\n".join(told.said)
        found = causes.known(said, end)
        if found and found[0] == "missing_module" and not told.raised:
            found = causes.known(told.said[-1], end)  # else a warning
        if told.raised:
            kind, words = found or (
                "exception",
                f": {reading.short(told.raised.message, _MESSAGE)}",
            )
            at = min(at, told.raised.at) if end is None or not end.at else at
            return _Found(kind, words + told.raised.where, process, told.raised.rank, at)
        found = found or (causes.by_code(said, end) if end else None)
        return _Found(*found, process, process, at) if found else None

    def _last_resort(self, ends: Mapping[int, End], every: Sequence[int]) -> _Found | None:
        """Return the first end if each of them may be a consequence of another."""
        lost_ranks = {one: self._processes.get(one, _Process()).lost for one in every}
        silent = [one for one, raised in lost_ranks.items() if not raised]
        # Connections of a script's own may break as well.
        sure = not any(raised and _OWN.match(raised.message) for raised in lost_ranks.values())
        ended = any(one in ends and ends[one].signal == "SIGTERM" for one in silent)
        if len(silent) == 1 < len(every) and sure and not ended:
            words = " ended first, or the others lost the connection to it"
            return _Found("exit", words, silent[0], silent[0])
        known = {process: (end.signal == "SIGTERM", end.at) for process, end in ends.items()}
        process = min(known, key=known.__getitem__, default=self.rank)
        if process is None or (self.code is None and not ends):
            return None
        if lost := self._processes.get(process, _Process()).lost:
            return _Found("exception", f": {lost.message}{lost.where}", process, lost.rank, lost.at)
        if process in ends:
            kind, words = causes.by_code("", ends[process]) or ("signal", " was ended by SIGTERM")
            return _Found(kind, words, process, process, ends[process].at)
        unclear = "was killed, or " if self.code == SSH_FAILED else ""
        more = ": SSH says the same of both" if unclear else ""
        words = f" {unclear}ended with exit code {self.code}{more}"
        return _Found("exit", words, process, process)

    def _read_warning(self, rank: int, text: str) -> None:
        if _STALLED in text:
            before, self._warned = self._warned, time.monotonic()
            known = self.missing if self._warned - before < _NEW_STALL_S else {}
            self._warner, self._before, self.missing = rank, known, {}
        elif rank == self._warner:
            if (found := _MISSING.match(text)) and len(self.missing) < _MOST:
                self.missing.setdefault(int(found[1]), found[2])
                if len(self.missing) == 1 and not self.missing.items() <= self._before.items():
                    self.stalls, self.places = self.stalls + 1, {}
            elif found := _GIVES_UP.search(text):
                self._waited_s = int(found[1])

    def _is_launchers(self, line: str) -> bool:
        # Other launchers prefix no line, so a traceback may be a rank's.
        if self._tagged and _OF_PROCESS.fullmatch(line):
            return True
        if self._tagged and line == _TRACEBACK:
            self._in_traceback = True
        elif self._in_traceback and (named := _NAMED.fullmatch(line)):
            self._name(named[1], int(named[2]))
        elif line and not line.startswith(" ") and _FAILED not in line:
            self._in_traceback = False  # another error of the launcher, which must be shown
        return self._in_traceback

    def _name(self, what: str, number: int) -> None:
        if what == "Exit code":
            self.code = number
        else:
            self.rank = number


def _trace(process: _Process, rank: int, line: str) -> None:
    """Read a line that may be part of a traceback."""
    if of_torch := _OF_TORCH.match(line):
        rank, line = int(of_torch[1]), line[of_torch.end() :]
    if line.endswith(_TRACEBACK):  # behind a progress bar perhaps
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

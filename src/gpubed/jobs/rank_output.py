"""Tells the output of ranks from that of their launcher, and finds the rank that failed first.

Horovod's launcher prefixes each line of a rank with rank and stream, and leaves its own lines as
they are. After a failure it reports each rank that ends, and a traceback of its own code; of these,
only the number of the failed rank is used.
"""

from __future__ import annotations

import re
import signal
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

SSH_FAILED = 255
"""OpenSSH's own exit code: of a connection that was lost, or never came about."""
_BY_SIGNAL = 128
_KILLED = _BY_SIGNAL + signal.SIGKILL
# Horovod prefixes each line with the rank, MPI also with the number of the job.
_OF_RANK = re.compile(r"\[(?:\d+,)?(\d{1,6})\]<(stdout|stderr)>:(.*)", re.DOTALL)
_TRACEBACK = "Traceback (most recent call last):"
# torch prefixes each line of a traceback with the rank.
_OF_TORCH = re.compile(r"\[rank(\d{1,6})\]: ?")
_FRAME = re.compile(r'\s+File "(.+)", line (\d+)')
_LIBRARY = re.compile(r"/site-packages/|/dist-packages/|/lib/python3")
_IN_RUN = re.compile(r".*/runs/[^/]+/")
# Errors of ranks that lost another one: consequences, never the cause of a failure.
_CONSEQUENCE = re.compile(
    r"HorovodInternalError|Horovod has been shut down|Connection (?:closed|reset) by peer|"
    r"Broken pipe|NCCL.*(?:remote process exited|aborted|unhandled system error)|ChildFailedError|"
    r"SignalException|KeyboardInterrupt"
)
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
# Lines on stderr that are kept of each rank: a traceback has the exception at its end.
_LAST = 10
_LONGEST = 2000  # characters of a line that are kept


def is_said(line: str) -> bool:
    """Say whether a rank printed a line on stdout.

    Stderr does not count: Horovod itself warns there every minute of ranks that wait for a stuck
    one.
    """
    of_rank = _OF_RANK.fullmatch(line)
    return of_rank is not None and of_rank[2] == "stdout"


@dataclass(frozen=True)
class Raised:
    """An exception that ended a rank.

    Attributes:
        process: The process of the run that printed it.
        rank: The rank that raised it; differs from `process` if that starts ranks itself.
        message: The last line of its traceback.
        where: File and line, in the run's own files if one of them is in the traceback.
    """

    process: int
    rank: int
    message: str
    where: str


class RankOutput:
    """Reads the lines of a run: formats them for people, and keeps a failed rank's last words.

    Args:
        ranks: Number of ranks. As a job may print what looks like a line of another rank, nothing
            is kept of ranks beyond it.

    Attributes:
        code: The exit code of the first rank that failed; None if the launcher names none.
        rank: The number of that rank.
    """

    def __init__(self, ranks: int = 0) -> None:
        self._ranks = range(ranks)
        self.code: int | None = None
        self.rank: int | None = None
        self._tagged = self._in_traceback = False
        self._errors: dict[int, deque[str]] = defaultdict(lambda: deque(maxlen=_LAST))
        self._frames: dict[int, list[str]] = {}  # by process, while its traceback goes on
        self._raised: Raised | None = None

    def read(self, line: str) -> str | None:
        """Return a line as it is shown; None for the launcher's own lines about ranks that end."""
        said = _OF_RANK.fullmatch(line)
        if said is None:
            return None if self._is_launchers(line) else line
        self._tagged, rank = True, int(said[1])
        if said[2] == "stderr" and rank in self._ranks and said[3].strip():
            self._errors[rank].append(said[3][:_LONGEST])
            self._trace(rank, said[3][:_LONGEST])
        return f"rank {rank}: {said[3]}"

    @property
    def last_words(self) -> list[str]:
        """The last lines on stderr of the rank that failed first."""
        rank = self._raised.process if self._raised else self.rank
        return [] if rank is None else list(self._errors.get(rank, ()))

    @property
    def lost_its_node(self) -> bool:
        """Whether the rank that failed first did so because SSH lost its node."""
        said = () if self.rank is None else self._errors.get(self.rank, ())
        return self.code == SSH_FAILED and any(map(_LOST.match, said))

    def failure(self, nodes: Sequence[str]) -> str:
        """Say which rank failed first, where and why; empty if that is unknown.

        The first exception counts that is not a consequence of another rank's end: ranks that wait
        for the failed one may end before it.

        Args:
            nodes: The node of each process.
        """
        cause = self._raised
        # A printed traceback need not have ended its rank; a killed rank prints none.
        killed = self.code == _KILLED and cause is not None and cause.process != self.rank
        if cause and cause.process < len(nodes) and not (killed or self.lost_its_node):
            where = f" ({cause.where})" if cause.where else ""
            return f"rank {cause.rank} on {nodes[cause.process]}: {cause.message}{where}"
        if self.rank is None or self.code is None or self.rank not in range(len(nodes)):
            return ""
        if self.lost_its_node:
            where = nodes[self.rank]
            return f"{where} went, or the connection to it did, and rank {self.rank} with it"
        return f"rank {self.rank} on {nodes[self.rank]} {_end(self.code)}"

    def _trace(self, process: int, line: str) -> None:
        """Read a line that may be part of a traceback."""
        rank = process
        if of_torch := _OF_TORCH.match(line):
            rank, line = int(of_torch[1]), line[of_torch.end() :]
        if line == _TRACEBACK:
            self._frames[process] = []
        elif process not in self._frames:
            return
        elif frame := _FRAME.match(line):
            self._frames[process].append(f"{_IN_RUN.sub('', frame[1])}:{frame[2]}")
        elif not line.startswith(" "):
            frames = self._frames.pop(process)
            own = [frame for frame in frames if not _LIBRARY.search(frame)]
            # Python reports the last of a chain of exceptions.
            same = self._raised is None or self._raised.process == process
            if same and not _CONSEQUENCE.search(line):
                self._raised = Raised(process, rank, line, (own or frames or [""])[-1])

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


def _end(code: int) -> str:
    """Describe an exit code; a shell adds 128 to the number of the signal that ended a process."""
    if code == SSH_FAILED:
        return f"was killed, or ended with exit code {code}: SSH says the same of both"
    try:
        name = signal.Signals(code - _BY_SIGNAL).name
    except ValueError:
        return f"ended with exit code {code}"
    why = ", as where memory runs out" if name == "SIGKILL" else ""
    return f"was ended by {name}{why} (exit code {code})"

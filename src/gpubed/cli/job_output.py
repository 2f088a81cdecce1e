"""Shows the output of a running job."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from gpubed.cli import run_detached
from gpubed.cli.ui import UI
from gpubed.jobs.job_progress import Estimate
from gpubed.jobs.rank_output import RankOutput
from gpubed.nodes.output import OF_RANK

_LAST = 20  # lines; last words have fewer
_LIVE = 8  # lines that replace themselves at once
_TOGETHER_S = 0.3


class JobOutput:
    """Shows the lines of a job: progress and bars replace themselves, the rest scrolls by.

    A terminal shows a line once that several ranks print within a moment. What the launcher says
    of ranks that end is in the run's output alone: it would bury what a rank said. In the
    background (`log`) all of it is: a job may print without end, and nothing bounds that log.
    """

    def __init__(self, ui: UI, show: Callable[[str], None], log: Path) -> None:
        self._ui, self._show = ui, show
        self._is_quiet = run_detached.is_said_into(log)
        self._estimate, self._output = Estimate(), RankOutput()
        self._shown: deque[str] = deque(maxlen=_LAST)
        self._progress, self._bars = "", dict[str, str]()
        self._told: set[int] = set()
        # Lines that are not shown yet, each with its ranks in the order in which they said it.
        self._held: list[tuple[str, dict[int, None]]] = []
        self._lock = threading.Lock()

    def tell(self, line: str) -> None:
        """Show a line."""
        if self._is_quiet:
            return
        said = OF_RANK.fullmatch(line.rstrip("\r"))
        if line.endswith("\r"):
            self._update(f"rank {said[1]}: " if said else "", said[3] if said else line)
        elif (progress := self._estimate.read(line)) is not None:
            self._progress = progress
            self._draw()
        elif (shown := self._output.read(line)) is not None:
            if said and self._ui.err.is_terminal:
                self._hold(int(said[1]), said[3])
            else:
                self._print(shown, said[3] if said else shown)
            self._tell_stalls()

    def ended_with(self, words: Sequence[str]) -> bool:
        """Return whether these lines were the last ones shown."""
        self._release()
        return [*self._shown][-len(words) :] == [*words]

    def _update(self, rank: str, text: str) -> None:
        if text.strip() and self._ui.err.is_terminal:
            self._bars[rank] = f"{rank}{text.strip()}"[: self._ui.err.width - 4]
            self._draw()

    def _draw(self) -> None:
        bars = [self._bars[rank] for rank in sorted(self._bars)]
        more = [f"… and {len(bars) - _LIVE} more"] if len(bars) > _LIVE else []
        self._show("\n".join(filter(None, [self._progress, *bars[:_LIVE], *more])))

    def _hold(self, rank: int, text: str) -> None:
        """Keep a line for a moment, in which other ranks may print the same."""
        with self._lock:
            # A rank's own lines stay in their order.
            last = max((n for n, (_, ranks) in enumerate(self._held) if rank in ranks), default=-1)
            for held, ranks in self._held[last + 1 :]:
                if held == text:
                    ranks[rank] = None
                    return
            self._held.append((text, {rank: None}))
            if len(self._held) == 1:
                timer = threading.Timer(_TOGETHER_S, self._release)
                timer.daemon = True
                timer.start()

    def _release(self) -> None:
        with self._lock:
            for text, ranks in self._held:
                self._print(f"{_named(sorted(ranks))}: {text}", text)
            self._held.clear()

    def _print(self, shown: str, said: str) -> None:
        self._ui.note(shown, whole=True)
        if said.strip():
            self._shown.append(said)

    def _tell_stalls(self) -> None:
        for rank, tensor in self._output.missing.items():
            if rank not in self._told:
                self._told.add(rank)
                self._ui.mark(
                    "fail", f"rank {rank} has not come to {tensor}: other ranks wait there"
                )


def _named(ranks: Sequence[int]) -> str:
    """Name ranks, such as `rank 3` or `ranks 0-2, 5`."""
    parts = list[list[int]]()
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1].append(rank)
        else:
            parts.append([rank])
    named = (f"{one[0]}-{one[-1]}" if len(one) > 1 else f"{one[0]}" for one in parts)
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(named)}"

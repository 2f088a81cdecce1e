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

_LAST = 20  # lines, more than a failed rank's last words have
_MOST_BARS = 8  # progress bars that are shown at a time
_TOGETHER_S = 0.3  # equal lines of several ranks within this time are shown once


class JobOutput:
    """Shows the lines of a job: progress and bars replace themselves, other lines scroll by.

    A terminal shows equal lines of several ranks once. The launcher's messages about ranks that
    end are left out, since they would bury the ranks' own last lines; the run's output file has
    them. A background run, whose output goes to `log`, shows no line: nothing bounds that file.
    """

    def __init__(self, ui: UI, show: Callable[[str], None], log: Path) -> None:
        self._ui, self._show = ui, show
        self._is_quiet = run_detached.writes_to(log)
        self._estimate, self._output = Estimate(), RankOutput()
        self._shown: deque[str] = deque(maxlen=_LAST)
        self._progress, self._bars = "", dict[str, str]()
        self._reported: set[int] = set()  # stalled ranks
        # Lines that are not shown yet, each with the ranks that printed it.
        self._held: list[tuple[str, dict[int, None]]] = []
        self._lock = threading.Lock()

    def tell(self, line: str) -> None:
        """Show a line."""
        if self._is_quiet:
            return
        ranked = OF_RANK.fullmatch(line.rstrip("\r"))
        if line.endswith("\r"):
            self._update(f"rank {ranked[1]}: " if ranked else "", ranked[3] if ranked else line)
        elif (progress := self._estimate.read(line)) is not None:
            self._progress = progress
            self._draw()
        elif (shown := self._output.read(line)) is not None:
            if ranked and self._ui.err.is_terminal:
                self._hold(int(ranked[1]), ranked[3])
            else:
                self._print(shown, ranked[3] if ranked else shown)
            self._report_stalls()

    def ended_with(self, lines: Sequence[str]) -> bool:
        """Return whether these lines were the last ones shown."""
        self._release()
        return [*self._shown][-len(lines) :] == [*lines]

    def _update(self, rank: str, text: str) -> None:
        if text.strip() and self._ui.err.is_terminal:
            self._bars[rank] = f"{rank}{text.strip()}"[: self._ui.err.width - 4]
            self._draw()

    def _draw(self) -> None:
        bars = [self._bars[rank] for rank in sorted(self._bars)]
        more = [f"… and {len(bars) - _MOST_BARS} more"] if len(bars) > _MOST_BARS else []
        self._show("\n".join(filter(None, [self._progress, *bars[:_MOST_BARS], *more])))

    def _hold(self, rank: int, text: str) -> None:
        """Hold a line back until other ranks had the time to print the same line."""
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

    def _print(self, shown: str, text: str) -> None:
        self._ui.note(shown, whole=True)
        if text.strip():
            self._shown.append(text)

    def _report_stalls(self) -> None:
        for rank, tensor in self._output.missing.items():
            if rank not in self._reported:
                self._reported.add(rank)
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
    named = (f"{part[0]}-{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts)
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(named)}"

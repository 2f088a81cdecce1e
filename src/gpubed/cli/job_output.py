"""Shows the output of a running job."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from gpubed.cli import background
from gpubed.cli.ui import UI
from gpubed.jobs.job_progress import Estimate
from gpubed.jobs.rank_output import RankOutput

_LAST = 20  # lines; last words have fewer


class JobOutput:
    """Shows the lines of a job: progress replaces itself, the rest scrolls by.

    What the launcher says of ranks that end is in the run's output alone: it would bury what a
    rank said. In the background all of it is: a job may print without end, and nothing bounds
    that log.

    Args:
        show: Shows a line of progress.
        log: Where runs in the background are said into.
    """

    def __init__(self, ui: UI, show: Callable[[str], None], log: Path) -> None:
        self._ui, self._show = ui, show
        self._is_quiet = background.is_said_into(log)
        self._estimate, self._output = Estimate(), RankOutput()
        self._shown: deque[str] = deque(maxlen=_LAST)

    def tell(self, line: str) -> None:
        """Show a line."""
        if self._is_quiet:
            return
        if (progress := self._estimate.read(line)) is not None:
            self._show(progress)
        elif (shown := self._output.read(line)) is not None:
            self._ui.note(shown, whole=True)
            _, _, said = shown.partition(": ")  # whichever rank it was
            if said.strip():
                self._shown.append(said)

    def ended_with(self, words: Sequence[str]) -> bool:
        """Return whether these lines were the last ones shown."""
        return [*self._shown][-len(words) :] == [*words]

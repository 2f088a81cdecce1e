"""Watches a run of an elastic training, and decides when it must end to continue on other nodes.

A run ends at once if it is silent and one of its nodes is lost, or if it is stuck: silent for long
although all nodes answer. The limits follow from the duration of its steps. If a node should be
left out or could be added, the run ends after its next checkpoint.

Silence means no output on stdout and no change to the checkpoint files.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from gpubed.core.errors import GpubedError
from gpubed.jobs import job_progress, rank_output
from gpubed.jobs.checkpoint_files import Files

_TICK_S = 2.0
_LOOK_S, _SOON_S = 60.0, 15.0
"""Seconds between two looks at nodes and checkpoints: usually, and while a change is expected."""
_SUSPICIOUS_S, _SUSPICIOUS_STEPS = 15.0, 3
"""After a silence longer than both, the nodes are looked at now."""
_STUCK_S, _STUCK_STEPS = 120.0, 10
"""A silence longer than both ends a run."""
_FIRST_S = 600.0
"""The longest silence before the second step of a job that prints its progress."""


@dataclass(frozen=True)
class Pace:
    """Silences of a run, which set the limits of the training's next run.

    Attributes:
        longest_s: Longest silence between steps; None before the second step.
        first_s: Longest silence to allow before the second step.
    """

    longest_s: float | None = None
    first_s: float = _FIRST_S


@dataclass(frozen=True)
class Sight:
    """Result of a look at the nodes: why a node is `lost`, and a `better` choice; or empty."""

    lost: str = ""
    better: str = ""


class StallDetector:
    """Watches one run of a training.

    Args:
        look: Looks at the nodes.
        checkpoints: Lists the checkpoint files; None if the head does not answer.
        say: Called with messages about changes to come.
        prints_progress: Whether the job prints progress lines (`progress` in `job.yml`).

    Attributes:
        verdict: Why the run has to end; empty until then.
        blames_nodes: Whether nodes are the reason, and not the job.
        makes_room: Whether the run was healthy, and ends for a better choice of nodes.
    """

    def __init__(
        self,
        look: Callable[[], Sight],
        checkpoints: Callable[[], Files | None],
        say: Callable[[str], None],
        pace: Pace = Pace(),
        clock: Callable[[], float] = time.monotonic,
        *,
        prints_progress: bool = False,
    ) -> None:
        self._look, self._list, self._say, self._clock = look, checkpoints, say, clock
        self._heard = self._looked = self._listed = clock()
        self._is_paced, self._longest_s = pace.longest_s is not None, pace.longest_s or 0.0
        self._first_s, self._steps = pace.first_s, 0
        self._prints_progress = prints_progress
        self._better = ""
        self._files: Files | None = None
        self._files_before: Files | None = None  # when the better choice was found
        self.verdict, self.blames_nodes, self.makes_room = "", False, False

    @property
    def pace(self) -> Pace:
        """The pace for the next run."""
        return Pace(self._longest_s if self._is_paced else None, self._first_s)

    @property
    def has_stepped(self) -> bool:
        """Whether the run has made a step."""
        return self._steps > 0

    def hear(self, line: str) -> None:
        """Process a line of the run's output."""
        progress = job_progress.read(line)
        if progress or rank_output.is_stdout(line):
            self._live()
        if progress and progress[0]:  # `0/20` is no step
            self._steps += 1
            self._is_paced = self._is_paced or self._steps > 1

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Watch the run from a thread."""
        over = threading.Event()

        def watch() -> None:
            while not (self.verdict or over.wait(_TICK_S)):
                # Errors, such as a full disk, do not end the watch.
                with suppress(GpubedError, OSError):
                    self.tick()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(_TICK_S)  # a look at a silent node may take longer

    def tick(self) -> None:
        """Run the checks that are due now."""
        if self._clock() - self._listed > (_SOON_S if self._better else self._pause_s):
            self._list_checkpoints()
        if not self.verdict and self._clock() - self._looked > self._pause_s:
            self._look_at_nodes()
        if not self.verdict and (silence := self._silence_s) > self._limit_s:
            # The next run waits longer, as this one may only be slow.
            if self._steps > 1:
                self._longest_s = max(self._longest_s, 2 * silence / _STUCK_STEPS)
            else:
                self._first_s = max(self._first_s, 2 * silence)
            self.verdict = f"it printed nothing and kept no checkpoint for {silence:.0f} s"

    @property
    def _silence_s(self) -> float:
        return self._clock() - self._heard

    @property
    def _is_suspicious(self) -> bool:
        return self._silence_s > max(_SUSPICIOUS_S, _SUSPICIOUS_STEPS * self._longest_s)

    @property
    def _pause_s(self) -> float:
        """Seconds between two looks: few after a suspicious silence, more the longer it lasts."""
        if not self._is_suspicious:
            return _LOOK_S
        return min(_LOOK_S, max(_SOON_S, self._silence_s / _STUCK_STEPS))

    @property
    def _limit_s(self) -> float:
        if not (self._is_paced or self._prints_progress):
            return float("inf")
        least = _STUCK_S if self._steps > 1 else self._first_s
        return max(least, _STUCK_STEPS * self._longest_s)

    def _live(self) -> None:
        """End a silence, which counts for the pace after the first step."""
        now = self._clock()
        if self._steps:
            self._longest_s = max(self._longest_s, now - self._heard)
        self._heard = now

    def _look_at_nodes(self) -> None:
        sight = self._look()
        self._looked = self._clock()
        # A node that is unreachable from the controller may still train.
        if sight.lost and self._is_suspicious:
            self.blames_nodes = True
            self.verdict = sight.lost  # set last, here and below: the other thread waits for it
            return
        is_new, self._better = bool(sight.better) and not self._better, sight.better
        if is_new:
            self._files_before, self._listed = None, float("-inf")
            self._say(f"{sight.better}: this run ends after its next checkpoint")

    def _list_checkpoints(self) -> None:
        """Look for new checkpoints; a change also ends a silence."""
        found, last, since = self._list(), self._files, self._listed
        self._listed = self._clock()
        if found is None:
            return
        self._files = found
        # Only if the last list is newer than the last output, or the change may be older than that.
        if last not in (None, found) and since >= self._heard:
            self._heard = self._listed
        if not self._better:
            return
        if self._files_before is None or last is None:
            self._files_before = found
        elif found.have_more(self._files_before, last):
            self.blames_nodes = self.makes_room = True
            self.verdict = self._better

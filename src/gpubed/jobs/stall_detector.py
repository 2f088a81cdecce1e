"""Watches a training while it runs, and decides when it must end to go on elsewhere.

A training ends at once if it is silent while one of its nodes is lost, or if it is silent for long
although all nodes answer: it is stuck. The limits follow from the pace of its own steps. A node
that should be left out or could be taken in ends a training only after its next checkpoint.

Silence means no progress line, nothing else on stdout, and no change to the checkpoint files.
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
"""Between two looks at nodes and checkpoints; the second where something is to be seen soon."""
_SUSPICIOUS_S, _SUSPICIOUS_STEPS = 15.0, 3
"""A silence longer than both is a reason to look at the nodes now."""
_STUCK_S, _STUCK_STEPS = 120.0, 10
"""A silence longer than both ends a training."""
_FIRST_S = 600.0
"""The longest silence before its pace is known of a training whose job tells its progress."""


@dataclass(frozen=True)
class Pace:
    """What one part of a training tells the next about its pace.

    Attributes:
        longest_s: Longest silence after which it went on; None until its pace is known.
        first_s: Longest silence to allow until its pace is known.
    """

    longest_s: float | None = None
    first_s: float = _FIRST_S


@dataclass(frozen=True)
class Sight:
    """Result of a look at the nodes: why one is `lost`, and which change would be `better`."""

    lost: str = ""
    better: str = ""


class StallDetector:
    """Watches one training.

    Args:
        look: Looks at the nodes.
        kept: Lists the training's checkpoint files; None if that is not possible.
        say: Called with messages about what is going to happen.
        tells: Whether the job prints its progress, as `job.yml` says.

    Attributes:
        verdict: Why the training has to end; empty until then.
        blames_nodes: Whether nodes are the reason, and not the training itself.
        makes_room: Whether the training was healthy, and only goes on elsewhere.
    """

    def __init__(
        self,
        look: Callable[[], Sight],
        kept: Callable[[], Files | None],
        say: Callable[[str], None],
        pace: Pace = Pace(),
        clock: Callable[[], float] = time.monotonic,
        *,
        tells: bool = False,
    ) -> None:
        self._look, self._kept, self._say, self._clock = look, kept, say, clock
        self._heard = self._looked = self._asked = clock()
        self._is_paced, self._longest_s = pace.longest_s is not None, pace.longest_s or 0.0
        self._first_s, self._steps = pace.first_s, 0
        self._tells = tells
        self._better = ""
        self._found: Files | None = None
        self._at_wish: Files | None = None
        self.verdict, self.blames_nodes, self.makes_room = "", False, False

    @property
    def pace(self) -> Pace:
        """The pace for the next part."""
        return Pace(self._longest_s if self._is_paced else None, self._first_s)

    @property
    def has_stepped(self) -> bool:
        """Whether the training has made a step."""
        return self._steps > 0

    def hear(self, line: str) -> None:
        """Process a line of the training's output."""
        progress = job_progress.read(line)
        if progress or rank_output.is_said(line):
            self._live()
        if progress and progress[0]:  # `0/20` is no step
            self._steps += 1
            self._is_paced = self._is_paced or self._steps > 1

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Watch the training from a thread while it runs."""
        over = threading.Event()

        def watch() -> None:
            while not (self.verdict or over.wait(_TICK_S)):
                # A failed look, as on a full disk, does not end the watch.
                with suppress(GpubedError, OSError):
                    self.tick()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(_TICK_S)  # does not wait for a look at a silent node

    def tick(self) -> None:
        """Run the checks that are due now."""
        if self._clock() - self._asked > (_SOON_S if self._better else self._pause_s):
            self._ask()
        if not self.verdict and self._clock() - self._looked > self._pause_s:
            self._look_at_nodes()
        if not self.verdict and (silence := self._silence_s) > self._limit_s:
            self._allow(2 * silence)  # the next part waits longer: this one may only be slow
            self.verdict = f"nothing was heard of its progress for {silence:.0f} s"

    @property
    def _silence_s(self) -> float:
        return self._clock() - self._heard

    @property
    def _is_suspicious(self) -> bool:
        return self._silence_s > max(_SUSPICIOUS_S, _SUSPICIOUS_STEPS * self._longest_s)

    @property
    def _pause_s(self) -> float:
        """Seconds between two looks: fewer after a suspicious silence, more the longer it lasts."""
        if not self._is_suspicious:
            return _LOOK_S
        return min(_LOOK_S, max(_SOON_S, self._silence_s / _STUCK_STEPS))

    @property
    def _limit_s(self) -> float:
        if not (self._is_paced or self._tells):
            return float("inf")
        least = _STUCK_S if self._steps > 1 else self._first_s
        return max(least, _STUCK_STEPS * self._longest_s)

    def _allow(self, silence: float) -> None:
        if self._steps > 1:
            self._longest_s = max(self._longest_s, silence / _STUCK_STEPS)
        else:
            self._first_s = max(self._first_s, silence)

    def _live(self) -> None:
        """Note a sign of life; silence before the first step does not count for the pace."""
        now = self._clock()
        if self._steps:
            self._longest_s = max(self._longest_s, now - self._heard)
        self._heard = now

    def _look_at_nodes(self) -> None:
        seen = self._look()
        self._looked = self._clock()
        # A node may be unreachable from this machine only, and still train.
        if seen.lost and self._is_suspicious:
            self.blames_nodes = True
            self.verdict = seen.lost  # set last, here and below: the other thread waits for it
            return
        is_new, self._better = bool(seen.better) and not self._better, seen.better
        if is_new:
            self._at_wish, self._asked = None, float("-inf")
            self._say(f"{seen.better}: this run ends once another checkpoint is seen")

    def _ask(self) -> None:
        """Look at the checkpoints; a change there is a sign of life, too."""
        found, before, since = self._kept(), self._found, self._asked
        self._asked = self._clock()
        if found is None:
            return
        self._found = found
        # A change before the last line of output is no sign of life since then.
        if before not in (None, found) and since >= self._heard:
            self._heard = self._asked
        if not self._better:
            return
        if self._at_wish is None or before is None:
            self._at_wish = found
        elif found.have_more(self._at_wish, before):
            self.blames_nodes = self.makes_room = True
            self.verdict = self._better

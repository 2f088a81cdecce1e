"""Looks after a training while it runs, and decides when it had better go on elsewhere.

A training that is silent while one of its nodes is silent has lost that node; one that is silent
for long although all nodes answer is stuck: both end at once. How long is too long, the training's
own steps tell. A node that is to be left out, or could be taken in, is no hurry: the training ends
once it has kept another checkpoint.

Silence is no progress line, nothing else on stdout, and no written file of a checkpoint.
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
    """What a part of a training tells the next one.

    Attributes:
        longest_s: The longest silence after which it went on; None where it has made no step.
        first_s: The longest silence to allow before its pace is known.
    """

    longest_s: float | None = None
    first_s: float = _FIRST_S


@dataclass(frozen=True)
class Sight:
    """A look at the nodes: why one of them is `lost`, and which others would do `better`."""

    lost: str = ""
    better: str = ""


class Lookout:
    """Looks after one training.

    Args:
        look: Looks at the nodes.
        kept: Looks at the training's checkpoints; None where that is not possible.
        say: Is told what is about to happen.
        tells: Whether the job tells its progress, as `job.yml` has it.

    Attributes:
        verdict: Why the training is to end; empty until then.
        blames_nodes: Whether the verdict is about nodes, and not about the training itself.
        makes_room: Whether the training was well, and only goes on elsewhere.
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
        """Take a line of the training's output."""
        progress = job_progress.read(line)
        if progress or rank_output.is_said(line):
            self._live()
        if progress and progress[0]:  # where nothing is done yet, no step was made
            self._steps += 1
            self._is_paced = self._is_paced or self._steps > 1

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Look again and again, from a thread of its own, while the training runs."""
        over = threading.Event()

        def watch() -> None:
            while not (self.verdict or over.wait(_TICK_S)):
                # A look may fail, as on a full disk; others follow.
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
        """Do what is due now."""
        if self._clock() - self._asked > (_SOON_S if self._better else self._pause_s):
            self._ask()
        if not self.verdict and self._clock() - self._looked > self._pause_s:
            self._look_at_nodes()
        if not self.verdict and (silence := self._silence_s) > self._limit_s:
            self._allow(2 * silence)  # for the next part: this one may only have been slow
            self.verdict = f"nothing was heard of its progress for {silence:.0f} s"

    @property
    def _silence_s(self) -> float:
        return self._clock() - self._heard

    @property
    def _is_suspicious(self) -> bool:
        return self._silence_s > max(_SUSPICIOUS_S, _SUSPICIOUS_STEPS * self._longest_s)

    @property
    def _pause_s(self) -> float:
        """Seconds between two looks; ever more of them with a job that is silent by nature."""
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
        """Note a sign of life; the silence before the first step tells nothing of later ones."""
        now = self._clock()
        if self._steps:
            self._longest_s = max(self._longest_s, now - self._heard)
        self._heard = now

    def _look_at_nodes(self) -> None:
        seen = self._look()
        self._looked = self._clock()
        # A node that only this machine cannot reach may still train.
        if seen.lost and self._is_suspicious:
            self.blames_nodes = True
            self.verdict = seen.lost  # last, here and below: the other thread then reads the rest
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
        # A change before the last line says nothing of the time since.
        if before not in (None, found) and since >= self._heard:
            self._heard = self._asked
        if not self._better:
            return
        if self._at_wish is None or before is None:
            self._at_wish = found
        elif found.have_more(self._at_wish, before):
            self.blames_nodes = self.makes_room = True
            self.verdict = self._better

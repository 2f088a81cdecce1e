"""Looks after a training while it runs, and says when it had better go on elsewhere.

What may be going on is told apart by two signs. A training that says of no progress while a node
of it is silent has lost that node, and one that says nothing for long although all nodes answer
is stuck: both are ended at once. A node that is to be left out, or could be taken in, is no hurry:
the training is ended as soon as it has kept what it did.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from gpubed.jobs import job_progress

_TICK_S = 2.0
_LOOK_S = 60.0
"""How often nodes are looked at while all goes well."""
_SUSPICIOUS_S, _SUSPICIOUS_STEPS = 15.0, 3
"""A silence that is longer than both is a reason to look at the nodes now."""
_STUCK_S, _STUCK_STEPS = 120.0, 10
"""A silence that is longer than both ends a training."""
_FIRST_S = 600.0
"""How long it may take until a training says for the first time how far it is."""


@dataclass(frozen=True)
class Sight:
    """What a look at the nodes found.

    Attributes:
        lost: Why nodes of the training cannot go on with it; empty where all of them answer.
        better: Why others than these would do better from now on; empty where none would.
    """

    lost: str = ""
    better: str = ""


class Lookout:
    """Looks after one training; `verdict` says why it is to end, and is empty until then.

    Attributes:
        blames_nodes: Whether the verdict is about nodes, and not about the training itself.
        makes_room: Whether the training was well, and only goes on elsewhere.

    Args:
        look: Looks at the nodes.
        kept: Returns something else as soon as the training has kept more than before; the same
            where nobody can tell.
        say: Is told what is about to happen.
        clock: Seconds that pass.
    """

    def __init__(
        self,
        look: Callable[[], Sight],
        kept: Callable[[], str],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._look, self._kept, self._say, self._clock = look, kept, say, clock
        self._heard = self._looked = clock()
        self._step_s: float | None = None  # the longest that it took from one to the next so far
        self._better, self._at_wish, self._just_now = "", "", ""
        self.verdict, self.blames_nodes, self.makes_room = "", False, False

    def hear(self, line: str) -> None:
        """Take a line of the training's output."""
        if job_progress.is_progress(line):
            now = self._clock()
            first = self._step_s is None
            self._step_s = 0.0 if first else max(self._step_s or 0.0, now - self._heard)
            self._heard = now

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Look again and again, from a thread of its own, while the training runs."""
        over = threading.Event()

        def watch() -> None:
            while not (self.verdict or over.wait(_TICK_S)):
                self.tick()

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join(_TICK_S)  # a look at a node that is silent may take longer, and is no harm

    def tick(self) -> None:
        """Do what is due now."""
        now = self._clock()
        silence = now - self._heard
        suspicious = silence > self._patience(_SUSPICIOUS_S, _SUSPICIOUS_STEPS)
        if now - self._looked > (_SUSPICIOUS_S if suspicious else _LOOK_S):
            seen = self._look()
            self._looked = self._clock()
            # What we cannot reach may still train: it would have to be silent to everybody.
            if suspicious and seen.lost:
                self.verdict, self.blames_nodes = seen.lost, True
                return
            self._wish(seen.better)
        if silence > (_FIRST_S if self._step_s is None else self._patience(_STUCK_S, _STUCK_STEPS)):
            self.verdict = f"nothing was heard of its progress for {silence:.0f} s"
        elif self._better and self._has_kept_more():
            # The verdict last: whoever sees it may ask for the rest.
            self.blames_nodes = self.makes_room = True
            self.verdict = self._better

    def _patience(self, seconds: float, steps: int) -> float:
        return max(seconds, steps * (self._step_s or 0.0))

    def _wish(self, better: str) -> None:
        if better and not self._better:
            self._say(f"{better}: from its next checkpoint on")
            self._at_wish = self._just_now = self._kept()
        self._better = better

    def _has_kept_more(self) -> bool:
        """Say whether something was kept since the wish, and is whole: it changes no more."""
        now, before = self._kept(), self._just_now
        self._just_now = now
        return now == before != self._at_wish

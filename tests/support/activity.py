"""Seeded traces of what happens on a node, as its looks see it (STAND-IN for the node).

What is always there is there as well: a JupyterLab that nobody uses, terminals that are open, a
program that holds a GPU, exporters, logins of gpubed's own, logins that were forgotten, and a clock
that jumps.
"""

import random

MINUTE, HOUR = 60.0, 3600.0
# What leaves its time behind is seen however short it was; what is only seen at work is not.
LEAVE = ("typed", "notebook", "cell")
KINDS = (*LEAVE, "rank", "gpu", "cpu", "upload")
# Bytes each second of an upload: 0.2, 1 and 6 Mbit/s.
SLOW = (25_000.0, 125_000.0, 750_000.0)


class Node:
    """A node whose users do what a seed says; each `see` is a look at a later second."""

    def __init__(self, seed, until, logins=None, quiet_from=None, busy=False):
        self._draw, self._logins = random.Random(seed), logins
        self.used = []
        self._last = 0.0
        self._wall = 1.9e9
        self.boots = [0.0]
        quiet_from = until if quiet_from is None else quiet_from
        at = self._draw.uniform(0, 2 * HOUR)
        while at < quiet_from:
            kind = self._draw.choice(KINDS)
            least = 1 if kind in LEAVE else 5 * MINUTE
            lasts = self._draw.choice((least, 5 * MINUTE, HOUR, 4 * HOUR))
            end = at + lasts * self._draw.uniform(0.5, 1)
            self.used.append((at, end, kind))
            at = end + self._draw.uniform(MINUTE, (0.4 if busy else 5) * HOUR)
        if self._draw.random() < 0.2 and not busy:
            self.boots.append(self._draw.uniform(0, quiet_from))
        self.boots.sort()

    def last_use(self, second):
        """Return when it was last used, a start included, as of a second."""
        ends = [min(end, second) for at, end, _ in self.used if at <= second]
        return max([*ends, *(boot for boot in self.boots if boot <= second)])

    def _times(self, kinds, second):
        for at, end, what in self.used:
            if what in kinds and at <= second:
                # Who works types or runs a cell every few minutes.
                yield at + (min(end, second) - at) // (3 * MINUTE) * 3 * MINUTE

    def _at_work(self, kind, second):
        return sum(
            max(0.0, min(end, second) - max(at, self._last))
            for at, end, what in self.used
            if what == kind
        )

    def _now(self, kind, second):
        return any(at <= second < end for at, end, what in self.used if what == kind)

    def _upload(self, second):
        for place, (at, end, what) in enumerate(self.used):
            if what == "upload" and at <= second < end:
                return place, SLOW[place % len(SLOW)], second - at
        return None

    def see(self, second):
        """Look; as `machine.see` does."""
        draw, elapsed = self._draw, second - self._last
        boot = max(moment for moment in self.boots if moment <= second)
        self._wall += draw.choice((0, 0, 0, 0, -2 * HOUR, 9 * HOUR)) if draw.random() < 0.01 else 0
        typed = max(self._times({"typed"}, second), default=0.0)
        cell = max(self._times({"notebook", "cell"}, second), default=0.0)
        jupyter = draw.uniform(0.003, 0.02) * elapsed
        work = [["jupyter", "", jupyter]]
        if seconds := self._at_work("cpu", second):
            # What makes 6 s of a minute.
            work.append(["bob", "", 0.5 * seconds])
        self._last = second
        upload = self._upload(second)
        computes = self._now("gpu", second)
        return {
            "boot": f"boot-{boot:.0f}",
            "uptime": second - boot,
            "work": work,
            "processes": {},
            "ranks": [["alice", "20300101-digits"]] if self._now("rank", second) else [],
            "gpus": [
                {"utilization": 0.9 if computes else 0.0, "held": [["alice", ""]]},
                {"utilization": 0.0, "held": []},
            ],
            "terminals": {"0": ["alice", typed], "1": ["bob", 17.0]},
            "kernels": {
                "k": ["jupyter", f"{cell}", "busy" if self._now("cell", second) else "idle"]
            },
            "logins": self._logins.see(second, upload) if self._logins else {},
            "own": [],
            "mute": [],
        }

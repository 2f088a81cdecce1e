"""Questions about a training before nodes are booked, each answered by `model.predict`.

Node-hours are `nodes x images / (images/s) / 3600`, for a number of epochs over a dataset; the time
to start a job and to load data is not in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.units import format_rate
from gpubed.prediction import model
from gpubed.prediction.model import Calibration, Prediction, Setup

LINKS = (1e9, 10e9, 25e9, 40e9, 100e9)
"""Rates that links of testbeds usually have, in bit/s."""
BATCHES = (8, 16, 32, 64, 96, 128, 192, 256, 512)
IMAGENET = 1_281_167
"""Images of an epoch of ImageNet (ILSVRC 2012, training set)."""
_MOST_NODES = 64
_LITTLE = 0.05  # of a step, or of a rate: less is not worth a word
PARTS = {
    "slowdown": "computation that communication slows down",
    "exposed_communication": "communication that computation does not hide",
    "latency": "latency of the allreduce",
    "stragglers": "waiting for the slowest rank",
    "input": "reading images",
}


@dataclass(frozen=True)
class Work:
    """What a training computes: passes over so many images."""

    epochs: int = 90
    dataset_size: int = IMAGENET


@dataclass(frozen=True)
class Row:
    """A setup and its prediction."""

    setup: Setup
    prediction: Prediction
    work: Work = Work()

    @property
    def hours(self) -> float:
        """Hours that the work takes."""
        return self.work.epochs * self.work.dataset_size / self.prediction.images_per_s / 3600

    @property
    def node_hours(self) -> float:
        """Node-hours that the work takes."""
        return self.setup.nodes * self.hours

    @property
    def communication(self) -> float:
        """Share of a step that is spent on communication."""
        parts = self.prediction.parts
        exposed = parts.get("exposed_communication", 0.0) + parts.get("latency", 0.0)
        return exposed / self.prediction.step_s

    def document(self) -> dict[str, Any]:
        """Return the row for JSON; rates in images/s and bit/s, `step_s` in seconds."""
        of = ("model", "gpu", "nodes", "gpus_per_node", "batch", "link_bps", "transport")
        kept = ("images_per_s", "low", "high", "efficiency", "step_s", "dominates", "rate_source")
        return {
            **{name: getattr(self.setup, name) for name in (*of, "precision")},
            **{name: getattr(self.prediction, name) for name in kept},
            "hours": self.hours,
            "node_hours": self.node_hours,
        }


@dataclass(frozen=True)
class Answer:
    """An answer in words, and the predictions that it rests on.

    Attributes:
        words: The answer.
        dominates: What takes most of a step beside compute.
        sure: How sure the answer is, by the 90 % interval.
        changes: What would change it, the largest gain first.
        best: The row that the answer names.
    """

    question: str
    words: str
    dominates: str
    sure: str
    changes: str
    best: Row
    rows: tuple[Row, ...]

    def lines(self) -> list[str]:
        """Return the answer as text."""
        return [
            self.words,
            f"  what dominates: {self.dominates}",
            f"  how sure: {self.sure}",
            f"  what would change it: {self.changes}",
        ]

    def document(self) -> dict[str, Any]:
        """Return the answer for JSON."""
        words = ("question", "words", "dominates", "sure", "changes")
        rows = [row.document() for row in self.rows]
        return {name: getattr(self, name) for name in words} | {
            "best": self.best.document(),
            "rows": rows,
        }


class Questions:
    """Answers about one setup.

    Args:
        setup: The setup that the user described.
        work: The images of the whole training, for hours and node-hours.
        calibration: Numbers that a probe measured on the cluster; None takes the shipped ones.
    """

    def __init__(
        self, setup: Setup, work: Work = Work(), calibration: Calibration | None = None
    ) -> None:
        self.setup, self.work, self.calibration = setup, work, calibration

    def row(self, **changes: Any) -> Row:
        """Predict the setup with some changes; one node uses no link."""
        setup = replace(self.setup, **changes)
        if setup.nodes == 1:
            setup = replace(setup, transport="none")
        elif setup.transport == "none":
            setup = replace(setup, transport="tcp")
        return Row(setup, model.predict(setup, self.calibration), self.work)

    def scaling(self) -> list[Row]:
        """Predict 1, 2, 4, … nodes, and as many as the setup has."""
        most = self.setup.nodes
        counts = {2**power for power in range(most.bit_length())} | {most}
        return [self.row(nodes=count) for count in sorted(counts)]

    def reach(self, target: float, links: Sequence[float] = ()) -> Answer:
        """Find the nodes and the link that reach `target` images/s at the least node-hours."""
        if target <= 0:
            raise UsageError(f"--target {target:g} must be more than 0", "--target 2000")
        rows, highest = list[Row](), list[Row]()
        for link in sorted(links) or LINKS:
            tried = [self.row(nodes=count, link_bps=link) for count in range(1, _MOST_NODES + 1)]
            enough = [row for row in tried if row.prediction.images_per_s >= target]
            rows += enough[:1]
            highest.append(max(tried, key=lambda row: row.prediction.images_per_s))
        wanted = f"{figure(target)} images/s"
        if not rows:
            best = max(highest, key=lambda row: row.prediction.images_per_s)
            words = (
                f"No number of nodes up to {_MOST_NODES} reaches {wanted}; {_on(best)}, at most."
            )
            return self._answer("reach", words, best, highest)
        # Equal costs: the fewer nodes, then the slower link, which is easier to get.
        best = min(rows, key=lambda row: (row.node_hours, row.setup.nodes))
        words = (
            f"{wanted} at the least node-hours: {_named(best)}, {figure(best.node_hours)} "
            f"node-hours for {self.work.epochs} epochs in {figure(best.hours)} h."
        )
        others = [f"{_named(row)}, {figure(row.node_hours)} node-hours" for row in rows]
        others = [said for row, said in zip(rows, others, strict=True) if row is not best]
        words += f" Also: {'; '.join(others)}." if others else ""
        safe = f"even the lower end of the interval reaches {wanted}"
        if best.prediction.low < target:
            link = best.setup.link_bps
            several = (self.row(nodes=n, link_bps=link) for n in range(1, _MOST_NODES + 1))
            sure = next((row for row in several if row.prediction.low >= target), None)
            safe = f"the lower end falls short; {_count(sure.setup.nodes)}" if sure else ""
            safe = f"{safe} reach it for certain" if sure else "no number of nodes is certain to"
        return self._answer("reach", words, best, rows, safe)

    def compare_links(self, links: Sequence[float]) -> Answer:
        """Say what each faster link gives over the slowest of them."""
        if len(set(links)) < 2:
            raise UsageError("--links needs two rates or more", "--links 1Gbit,10Gbit")
        if self.setup.nodes < 2:
            raise UsageError("one node uses no link", "--nodes 2, or more")
        rows = [self.row(link_bps=link) for link in sorted(set(links))]
        slow, said, doubted = rows[0], list[str](), list[str]()
        for row in rows[1:]:
            gain = row.prediction.images_per_s / slow.prediction.images_per_s
            pair = f"{format_rate(row.setup.link_bps)} over {format_rate(slow.setup.link_bps)}"
            verdict = f"worth it while such a node costs less than {gain:.2f} times as much"
            said.append(
                f"{pair}: {gain:.2f} times the images/s on {_count(row.setup.nodes)}, "
                + (verdict if gain > 1 + _LITTLE else "not worth it")
            )
            if row.prediction.low <= slow.prediction.high and gain > 1 + _LITTLE:
                doubted.append(f"the intervals of {pair} overlap, so the gain may be smaller")
        words = "; ".join(said) + "."
        apart = "; ".join(doubted) or "no gain rests on overlapping intervals"
        return self._answer("links", words, rows[-1], rows, apart)

    def hide(self) -> Answer:
        """Find the smallest batch at which communication takes 5 % of a step at most."""
        if self.setup.nodes < 2:
            raise UsageError("one node does not communicate", "--nodes 2, or more")
        rows = [self.row(batch=batch) for batch in BATCHES]
        hidden = [row for row in rows if row.communication <= _LITTLE]
        best = hidden[0] if hidden else rows[-1]
        share = f"{best.communication:.0%} of a step"
        words = f"Batch {best.setup.batch} per rank hides communication: {share}."
        if not hidden:
            words = f"No batch up to {BATCHES[-1]} hides communication: there, {share}."
        return self._answer("batch", words, best, rows)

    def cost(self) -> Answer:
        """Say how long the work takes, and how many node-hours."""
        best, images = self.row(), self.work.epochs * self.work.dataset_size / 3600
        fast, slow = (images / rate for rate in (best.prediction.high, best.prediction.low))
        words = (
            f"{self.work.epochs} epochs of {self.work.dataset_size:,} images take "
            f"{figure(best.hours)} h on {_count(best.setup.nodes)}: {figure(best.node_hours)} "
            "node-hours."
        )
        count = best.setup.nodes
        sure = (
            f"{figure(fast)} to {figure(slow)} h, "
            f"{figure(fast * count)} to {figure(slow * count)} node-hours"
        )
        return self._answer("cost", words, best, [best], sure)

    def _answer(
        self, question: str, words: str, best: Row, rows: Sequence[Row], more: str = ""
    ) -> Answer:
        found = best.prediction
        interval = f"90 % interval {figure(found.low)} to {figure(found.high)} images/s"
        seconds = found.parts.get(found.dominates, 0.0)
        dominates = "compute"
        if seconds > _LITTLE * found.step_s:
            what = PARTS.get(found.dominates, found.dominates)
            dominates = f"{what}, {seconds / found.step_s:.0%} of a step"
        return Answer(
            question,
            words,
            dominates,
            f"{interval}; {more}" if more else interval,
            "; ".join(self._changes(best)) or "no faster link, larger batch or other precision",
            best,
            tuple(rows),
        )

    def _changes(self, best: Row) -> list[str]:
        """Return what a faster link, a larger batch and the like would give, most first."""
        setup, gains = best.setup, list[tuple[float, str]]()
        for what, changes in _levers(setup):
            try:
                rate = self.row(**{**vars(setup), **changes}).prediction.images_per_s
            except GpubedError:  # such as a precision that has no known rate
                continue
            gains.append((rate / best.prediction.images_per_s, what))
        gains.sort(reverse=True)
        return [f"{what} ({gain:.2f} times)" for gain, what in gains if gain > 1 + _LITTLE]


def _levers(setup: Setup) -> Iterator[tuple[str, dict[str, Any]]]:
    if setup.nodes > 1:
        faster = next((link for link in LINKS if link > setup.link_bps), setup.link_bps * 10)
        yield f"links of {format_rate(faster)}", {"link_bps": faster}
        if setup.transport == "tcp":
            yield "RDMA in place of TCP", {"transport": "rdma"}
    yield f"batch {2 * setup.batch}", {"batch": 2 * setup.batch}
    if setup.precision == "fp32" and setup.rate is None:
        yield "mixed precision", {"precision": "amp"}


def figure(value: float) -> str:
    """Write a number with three digits, or all digits before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _count(nodes: int) -> str:
    return f"{nodes} node{'' if nodes == 1 else 's'}"


def _named(row: Row) -> str:
    link = f" with {format_rate(row.setup.link_bps)}" if row.setup.nodes > 1 else ""
    return f"{_count(row.setup.nodes)}{link}"


def _on(row: Row) -> str:
    return f"{_named(row)} reach {figure(row.prediction.images_per_s)} images/s"

"""Questions about a training before nodes are booked, each answered by `model.predict`.

Node-hours are `nodes x images / (images/s) / 3600`, for a number of epochs over a dataset; the time
to start a job and to load data is not in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.units import format_rate
from gpubed.prediction import model
from gpubed.prediction.model import Calibration, Prediction, Setup

LINKS = (1e9, 10e9, 25e9, 40e9, 100e9)
"""Rates that links of testbeds usually have, in bit/s."""
BATCHES = (8, 16, 32, 64, 96, 128, 192, 256, 512)
NODES = range(1, 65)
COLUMNS = ("nodes", "images/s", "90 % interval", "efficiency", "hours", "node-hours")
PARTS = {
    "slowdown": "computation that communication slows down",
    "exposed_communication": "communication that computation does not hide",
    "latency": "latency of the allreduce",
    "stragglers": "waiting for the slowest rank",
    "input": "reading images",
}
_LITTLE = 0.05  # of a step, or of a rate: less is not worth a word


@dataclass(frozen=True)
class Row:
    """A setup, its prediction, and the hours that the whole training takes."""

    setup: Setup
    prediction: Prediction
    hours: float

    @property
    def rate(self) -> float:
        """Predicted images/s of all ranks."""
        return self.prediction.images_per_s

    @property
    def node_hours(self) -> float:
        """Node-hours of the whole training."""
        return self.setup.nodes * self.hours

    @property
    def words(self) -> str:
        """The setup without its nodes."""
        of, link = self.setup, format_rate(self.setup.link_bps)
        where = f"{of.gpus_per_node} x {of.gpu} per node" + f", {link}" * (of.nodes > 1)
        return f"{of.model}, batch {of.batch} per rank, {of.precision}, {where}"

    @property
    def cells(self) -> tuple[str, ...]:
        """The row as text, under `COLUMNS`."""
        found, numbers = self.prediction, map(figure, (self.hours, self.node_hours))
        interval = f"{figure(found.low)} to {figure(found.high)}"
        nodes, rate = str(self.setup.nodes), figure(self.rate)
        return nodes, rate, interval, f"{found.efficiency:.0%}", *numbers

    def document(self) -> dict[str, Any]:
        """Return the row for JSON; rates in images/s and bit/s, `step_s` and `parts` in seconds."""
        setup = asdict(replace(self.setup, shape=None))
        given = {name: value for name, value in setup.items() if value is not None}
        hours = {"hours": self.hours, "node_hours": self.node_hours}
        return given | asdict(self.prediction) | hours


@dataclass(frozen=True)
class Answer:
    """An answer, and the predictions that it rests on.

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
        said = {"what dominates": self.dominates, "how sure": self.sure}
        said["what would change it"] = self.changes
        return [self.words, *(f"  {name}: {text}" for name, text in said.items())]

    def document(self) -> dict[str, Any]:
        """Return the answer for JSON."""
        rows = [row.document() for row in self.rows]
        return vars(self) | {"best": self.best.document(), "rows": rows}


@dataclass(frozen=True)
class Questions:
    """Answers about one setup.

    Attributes:
        epochs: Passes over the dataset, for hours and node-hours.
        dataset_size: Images of an epoch; by default those of ImageNet.
        calibration: Numbers that a probe measured on the cluster; None takes the shipped ones.
    """

    setup: Setup
    epochs: int = 90
    dataset_size: int = 1_281_167
    calibration: Calibration | None = None

    def row(self, **changes: Any) -> Row:
        """Predict the setup with some changes."""
        setup = replace(self.setup, **changes)
        found = model.predict(setup, self.calibration)
        return Row(setup, found, self.epochs * self.dataset_size / found.images_per_s / 3600)

    def scaling(self) -> list[Row]:
        """Predict 1, 2, 4, … nodes, and as many as the setup has."""
        most = self.setup.nodes
        counts = {2**power for power in range(most.bit_length())} | {most}
        return [self.row(nodes=count) for count in sorted(counts)]

    def reach(self, target: float, links: Sequence[float] = LINKS) -> Answer:
        """Find the nodes and the link that reach `target` images/s at the least node-hours."""
        if target <= 0:
            raise UsageError(f"a target of {target:g} images/s is none", "--target 2000")
        wanted, rows, highest = f"{figure(target)} images/s", list[Row](), list[Row]()
        for link in links:
            tried = [self.row(nodes=count, link_bps=link) for count in NODES]
            rows += [row for row in tried if row.rate >= target][:1]
            highest.append(max(tried, key=lambda row: row.rate))
        if not rows:
            best = max(highest, key=lambda row: row.rate)
            said = f"{_named(best)}: {figure(best.rate)} images/s"
            words = f"No number of nodes up to {NODES[-1]} reaches {wanted}; the most are {said}."
            return self._answer("reach", words, best, highest)
        rows.sort(key=lambda row: row.node_hours)
        best, *others = (f"{_named(row)}, {figure(row.node_hours)} node-hours" for row in rows)
        words = f"{wanted} at the least node-hours: {best} for {self.epochs} epochs."
        words += f" Also: {'; '.join(others)}." if others else ""
        sure = (self.row(nodes=n, link_bps=rows[0].setup.link_bps) for n in NODES)
        count = next((row.setup.nodes for row in sure if row.prediction.low >= target), None)
        lower = f"{count or 'more than 64'} nodes reach {wanted} at the lower end, too"
        return self._answer("reach", words, rows[0], rows, lower)

    def compare_links(self, links: Sequence[float]) -> Answer:
        """Say what each faster link gives over the slowest of them."""
        if len(set(links)) < 2 or self.setup.nodes < 2:
            why = "links are compared between two nodes or more, and there must be two"
            raise UsageError(why, "--nodes 4 --links 1Gbit,10Gbit")
        slow, *others = rows = [self.row(link_bps=link) for link in sorted(set(links))]
        said, doubts = list[str](), list[str]()
        for row in others:
            gain = row.rate / slow.rate
            pair = f"{format_rate(row.setup.link_bps)} over {format_rate(slow.setup.link_bps)}"
            worth = f"worth it while nodes cost less than {gain:.2f} times as much"
            verdict = worth if gain > 1 + _LITTLE else "not worth it"
            said.append(f"{pair} on {row.setup.nodes} nodes: {gain:.2f} times the rate, {verdict}")
            if gain > 1 + _LITTLE and row.prediction.low <= slow.prediction.high:
                doubts.append(f"the intervals of {pair} overlap")
        return self._answer("links", f"{'; '.join(said)}.", rows[-1], rows, "; ".join(doubts))

    def hide(self) -> Answer:
        """Find the smallest batch at which communication takes 5 % of a step at most."""
        if self.setup.nodes < 2:
            raise UsageError("one node has no communication to hide", "--nodes 2, or more")
        rows = [self.row(batch=batch) for batch in BATCHES]
        best = next((row for row in rows if _communication(row) <= _LITTLE), rows[-1])
        share = _communication(best)
        words = f"Batch {best.setup.batch} per rank hides communication: {share:.0%} of a step."
        if share > _LITTLE:
            words = (
                f"No batch up to {BATCHES[-1]} hides communication: there, {share:.0%} of a step."
            )
        return self._answer("batch", words, best, rows)

    def cost(self) -> Answer:
        """Say how long the training takes, how many node-hours, and what half the nodes do."""
        best = self.row()
        half = self.row(nodes=best.setup.nodes // 2) if best.setup.nodes > 1 else None
        words = f"{self.epochs} epochs of {self.dataset_size:,} images take "
        words += "; ".join(
            f"{figure(row.hours)} h on {_named(row)}, {figure(row.node_hours)} node-hours"
            for row in filter(None, (best, half))
        )
        found = best.prediction
        least, most = (best.hours * best.rate / bound for bound in (found.high, found.low))
        sure = f"{figure(least)} to {figure(most)} h"
        return self._answer("cost", f"{words}.", best, [best, half] if half else [best], sure)

    def _answer(
        self, question: str, words: str, best: Row, rows: Sequence[Row], more: str = ""
    ) -> Answer:
        found, dominates = best.prediction, "compute"
        if (share := found.parts[found.dominates] / found.step_s) > _LITTLE:
            dominates = f"{PARTS.get(found.dominates, found.dominates)}, {share:.0%} of a step"
        sure = f"90 % interval {figure(found.low)} to {figure(found.high)} images/s"
        gains = list[tuple[float, str]]()
        for what, changes in _levers(best.setup):
            with suppress(GpubedError):  # such as a precision that has no known rate
                rate = replace(self, setup=best.setup).row(**changes).rate
                gains.append((rate / best.rate, what))
        changes = [
            f"{what} ({gain:.2f} times)"
            for gain, what in sorted(gains, reverse=True)
            if gain > 1 + _LITTLE
        ]
        changed = "; ".join(changes) or "no faster link, larger batch or other precision"
        sure = "; ".join(filter(None, (sure, more)))
        return Answer(question, words, dominates, sure, changed, best, tuple(rows))


def _levers(setup: Setup) -> Iterator[tuple[str, dict[str, Any]]]:
    if setup.nodes > 1:
        faster = next((link for link in LINKS if link > setup.link_bps), setup.link_bps * 10)
        yield f"links of {format_rate(faster)}", {"link_bps": faster}
        yield "RDMA in place of TCP", {"transport": "rdma"}
    yield f"batch {2 * setup.batch}", {"batch": 2 * setup.batch}
    if setup.rate is None:
        yield "mixed precision", {"precision": "amp"}


def figure(value: float) -> str:
    """Write a number with three digits, or all digits before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _communication(row: Row) -> float:
    """Return the share of a step that communication takes and computation does not hide."""
    parts = row.prediction.parts
    return (parts["exposed_communication"] + parts["latency"]) / row.prediction.step_s


def _named(row: Row) -> str:
    nodes = f"{row.setup.nodes} node{'s' * (row.setup.nodes > 1)}"
    return f"{nodes} with {format_rate(row.setup.link_bps)}" if row.setup.nodes > 1 else nodes

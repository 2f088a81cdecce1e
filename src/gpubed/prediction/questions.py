"""Questions about a training before nodes are booked, each answered by `model.predict`.

Node-hours are `nodes x images / (images/s) / 3600`: the start of a job is not in them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpubed.core.errors import GpubedError
from gpubed.core.units import format_rate
from gpubed.prediction import memory, model
from gpubed.prediction.model import Calibration, Prediction, Setup
from gpubed.prediction.shapes import shape

LINKS = (1e9, 10e9, 25e9, 40e9, 100e9)
"""Rates that links of testbeds usually have, in bit/s."""
BATCHES = (8, 16, 32, 64, 96, 128, 192, 256, 512)
NODES = range(1, 65)
COLUMNS = (
    *("nodes", "link", "batch", "images/s", "90 % interval", "step", "efficiency", "node-hours"),
    "beside compute",
)
PARTS = {
    "slowdown": "computation that communication slows down",
    "exposed_communication": "communication that computation does not hide",
    "latency": "latency of the allreduce",
    "stragglers": "waiting for the slowest rank",
    "input": "reading images",
}
_RDMA = 10e9  # bit/s: adapters for less have no RDMA
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
    def cells(self) -> tuple[str, ...]:
        """The row as text, under `COLUMNS`."""
        of, found = self.setup, self.prediction
        share = found.parts[found.dominates] / found.step_s
        return (
            str(of.nodes),
            format_rate(of.link_bps) if of.nodes > 1 else "",
            str(of.batch),
            figure(self.rate),
            f"{figure(found.low)} to {figure(found.high)}",
            f"{figure(1000 * found.step_s)} ms",
            f"{found.efficiency:.0%}",
            figure(self.node_hours),
            f"{found.dominates.replace('_', ' ')} {share:.0%}" if share >= 0.005 else "",
        )

    def document(self) -> dict[str, Any]:
        """Return the row for JSON; rates in images/s and bit/s, `step_s` and `parts` in seconds."""
        setup = asdict(replace(self.setup, shape=None))
        given = {name: value for name, value in setup.items() if value is not None}
        hours = {"hours": self.hours, "node_hours": self.node_hours}
        return {"ranks": self.setup.ranks} | given | asdict(self.prediction) | hours


@dataclass(frozen=True)
class Answer:
    """An answer in words, and the predictions that it rests on."""

    question: str
    words: str
    dominates: str  # what takes most of a step beside compute
    sure: str
    changes: str  # what would change it, the largest gain first
    best: Row  # which the words name
    rows: tuple[Row, ...]

    def lines(self) -> list[str]:
        """Return the answer as text."""
        of = self.best.setup
        return [
            self.words,
            f"  of: {of.model}, {of.precision}, {of.gpus_per_node} x {of.gpu} per node",
            f"  what dominates: {self.dominates}",
            f"  how sure: {self.sure}",
            f"  what would change it: {self.changes}",
        ]

    def document(self) -> dict[str, Any]:
        """Return the answer for JSON."""
        return vars(self) | {
            "best": self.best.document(),
            "rows": [r.document() for r in self.rows],
        }


@dataclass(frozen=True)
class Questions:
    """Answers about one setup; hours are those of all epochs."""

    setup: Setup
    epochs: int = 90
    dataset_size: int = 1_281_167  # images of an epoch: those of ImageNet
    calibration: Calibration | None = None  # of a probe, else the shipped numbers

    def row(self, **changes: Any) -> Row:
        """Predict the setup with some changes."""
        setup = replace(self.setup, **changes)
        known, own = self.calibration, self.setup
        if known and (setup.link_bps, setup.transport) != (own.link_bps, own.transport):
            known = replace(known, effective_bps=None)  # which a probe measured on another link
        found = model.predict(setup, known)
        return Row(setup, found, self.epochs * self.dataset_size / found.images_per_s / 3600)

    def scaling(self) -> list[Row]:
        """Predict 1, 2, 4, … nodes, and as many as the setup has."""
        most = self.setup.nodes
        counts = {2**power for power in range(most.bit_length())} | {most}
        return [self.row(nodes=count) for count in sorted(counts)]

    def reach(
        self, target: float, links: Sequence[float] = LINKS, nodes: Sequence[int] = NODES
    ) -> Answer:
        """Find the nodes and the link that reach `target` images/s at the least node-hours."""
        wanted = f"{figure(target)} images/s"
        tried = [[self.row(nodes=n, link_bps=link) for n in nodes] for link in links]
        rows = [row for of in tried for row in [one for one in of if one.rate >= target][:1]]
        if not rows:
            best = max(itertools.chain(*tried), key=lambda row: row.rate)
            said = f"{_named(best)}: {figure(best.rate)} images/s"
            words = f"No number of nodes up to {max(nodes)} reaches {wanted}; the most are {said}."
            return self._answer("reach", words, best, [best])
        rows.sort(key=lambda row: row.node_hours)
        named = (f"{_named(row)}, {figure(row.node_hours)} node-hours" for row in rows)
        least, *others = dict.fromkeys(named)
        words = f"{wanted} at the least node-hours: {least} for {self.epochs} epochs."
        words += f" Also: {'; '.join(others)}." if others else ""
        reached = {row.setup.link_bps for row in rows if row.setup.nodes > 1}
        if rows[0].setup.nodes > 1 and (never := sorted({*links} - reached)):
            slow = ", ".join(map(format_rate, never))
            words += f" With {slow}, no number of nodes up to {max(nodes)} reaches it."
        sure = (row for row in itertools.chain(*tried) if row.prediction.low >= target)
        safe = min(sure, key=lambda row: row.node_hours, default=None)
        lower = f"for its lower end, {_named(safe) if safe else 'no number of nodes'} is enough"
        return self._answer("reach", words, rows[0], rows, lower)

    def compare_links(self, links: Iterable[float]) -> Answer:
        """Say what each faster link gives over the slowest of them."""
        slow, *others = rows = [self.row(link_bps=link) for link in sorted(links)]
        said, doubts = list[str](), list[str]()
        for row in others:
            gain = row.rate / slow.rate
            pair = f"{format_rate(row.setup.link_bps)} over {format_rate(slow.setup.link_bps)}"
            worth = f"worth it while nodes cost less than {gain:.2f} times as much"
            verdict = worth if gain > 1 + _LITTLE else "not worth it"
            said.append(f"{pair} on {row.setup.nodes} nodes: {gain:.2f} times the rate, {verdict}")
            if gain > 1 + _LITTLE and row.prediction.low <= slow.prediction.high:
                doubts.append(f"the intervals of {pair} overlap")
        words = f"{'; '.join(said)}.{self._alone(rows)}"
        return self._answer("links", words, rows[-1], rows, "; ".join(doubts))

    def hide(self) -> Answer:
        """Find the smallest batch at which communication takes 5 % of a step at most."""
        rows = [self.row(batch=batch) for batch in BATCHES]
        best = next((row for row in rows if _communication(row) <= _LITTLE), rows[-1])
        share, batch = _communication(best), best.setup.batch
        which = f"Batch {batch}" if share <= _LITTLE else f"No batch up to {batch}"
        words = f"{which} hides communication: there, it takes {share:.0%} of a step."
        return self._answer("batch", words, best, rows)

    def cost(self) -> Answer:
        """Say how long the training takes, how many node-hours, and what half the nodes do."""
        counts = dict.fromkeys((self.setup.nodes, self.setup.nodes // 2 or 1))
        best, *_ = rows = [self.row(nodes=count) for count in counts]
        took = "; ".join(
            f"{figure(row.hours)} h on {_named(row)}, {figure(row.node_hours)} node-hours"
            for row in rows
        )
        words = f"{self.epochs} epochs of {self.dataset_size:,} images take {took}."
        words += self._alone(rows)
        bounds = (best.prediction.high, best.prediction.low)
        sure = " to ".join(figure(best.hours * best.rate / bound) for bound in bounds)
        return self._answer("cost", words, best, rows, f"{sure} h")

    def fit(self, memory_bytes: float, optimizer: str) -> Answer:
        """Say whether the training fits a GPU of so much memory, and how it does otherwise."""
        best = self.row()
        of = self.setup
        twice = memory.need(of.shape or shape(of.model), 2 * of.batch, of.precision, optimizer)
        alone = self.row(nodes=1, gpus_per_node=1).prediction.step_s
        way, why = memory.advice(self.setup, memory_bytes, alone, optimizer)
        words = f"Way to train: {way}; {why}."
        larger = twice.low <= memory_bytes
        return self._answer("fit", words, best, [best], larger_batch=larger)

    def _alone(self, rows: Iterable[Row]) -> str:
        """Say which rows are slower than one node, which needs no link."""
        one = self.row(nodes=1)
        slower = " and ".join(_named(row) for row in rows if row.rate < one.rate)
        took = f"{figure(one.rate)} images/s, {figure(one.hours)} h"
        return f" One node alone ({took}) is faster than {slower}." if slower else ""

    def _answer(
        self,
        question: str,
        words: str,
        best: Row,
        rows: Sequence[Row],
        more: str = "",
        *,
        larger_batch: bool = True,
    ) -> Answer:
        found, dominates = best.prediction, "compute"
        if (share := found.parts[found.dominates] / found.step_s) > _LITTLE:
            dominates = f"{PARTS.get(found.dominates, found.dominates)}, {share:.0%} of a step"
        sure = f"90 % interval {figure(found.low)} to {figure(found.high)} images/s"
        gains = list[tuple[float, str]]()
        for what, changes in _levers(best.setup):
            if "batch" in changes and not larger_batch:
                continue
            with suppress(GpubedError):  # such as a precision that has no known rate
                rate = replace(self, setup=best.setup).row(**changes).rate
                gains.append((rate / best.rate, what))
        gains = [one for one in sorted(gains, reverse=True) if one[0] > 1 + _LITTLE]
        changed = "; ".join(f"{what} ({gain:.2f} times)" for gain, what in gains)
        changed = changed or "no faster link, larger batch or other precision"
        sure = "; ".join(filter(None, (sure, more)))
        return Answer(question, words, dominates, sure, changed, best, tuple(rows))


def _levers(setup: Setup) -> Iterator[tuple[str, dict[str, Any]]]:
    if setup.nodes > 1:
        faster = next((link for link in LINKS if link > setup.link_bps), setup.link_bps * 10)
        yield f"links of {format_rate(faster)}", {"link_bps": faster}
        if setup.link_bps >= _RDMA:
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

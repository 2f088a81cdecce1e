"""Reads scaling runs from rows of a table: published ones, and those of `predict --table`."""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from gpubed.core.errors import UsageError
from gpubed.prediction import rates
from gpubed.prediction.model import MIB, Calibration, Prediction, Setup, calibrated, predict
from gpubed.prediction.shapes import known_as

Row = Mapping[str, str]
NEEDED = (
    *("row_id", "series_id", "model", "gpu", "n_nodes", "gpus_per_node"),
    *("net_gbps_nominal", "batch_per_gpu", "images_per_s"),
)
# Rates of links that are named by their kind, in Gbit/s, and assumed ones.
_INFINIBAND = {"qdr": 32, "fdr": 56, "edr": 100, "hdr": 200, "ndr": 400}
_KINDS = _INFINIBAND | {"slingshot": 200, "infiniband": 100}
_ETHERNET = 10
_RDMA = re.compile(r"rdma|roce(?!-capable)|infiniband|slingshot|aries|\befa\b|\b[efhn]dr\b", re.I)
# Amazon's adapters: NCCL opens 2 threads x 8 sockets (src/transport/net_socket.cc:354).
_AMAZON = re.compile(r"\bec2\b|\baws\b|\bp[234]\.|p3dn|g4dn", re.I)
_UNTUNED = re.compile(r"untuned|not tuned|single tcp flow", re.I)
_HALF_BATCH, _BATCH = 128, 64  # where a table is silent


@dataclass(frozen=True)
class Run:
    """A row: its set-up, and the rate that was measured, in images/s (None: to be predicted)."""

    row_id: str
    series: str
    setup: Setup
    measured: float | None
    source: str
    row: Row


def read(rows: Sequence[Row]) -> list[Run]:
    """Return the runs of a table; each has its one-GPU and one-node rate where its series has one.

    Raises:
        UsageError: The table lacks a column, or a row does not say how many GPUs it has.
    """
    if not rows:
        raise UsageError("the table has no rows", "give a CSV file with a line for each run")
    if missing := [name for name in NEEDED if name not in rows[0]]:
        raise UsageError(
            f"the table lacks the columns {', '.join(missing)}",
            f"its first line must name at least these, separated by commas: {', '.join(NEEDED)}",
        )
    found = list[Run]()
    alone: dict[str, list[Run]] = defaultdict(list)  # measured runs of one node, by series
    for number, row in enumerate(rows, start=2):
        try:
            run = _run({name: value or "" for name, value in row.items()})
        except ValueError as error:
            raise UsageError(
                f"line {number} (row_id {row.get('row_id')}) cannot be read: {error}",
                "write numbers with a point, as 2.5; leave images_per_s of a run to predict empty",
            ) from None
        found.append(run)
        if run.measured and run.setup.nodes == 1:
            alone[run.series].append(run)
    return [_with_base(run, alone[run.series]) for run in found]


def _run(row: Row) -> Run:
    nodes, gpus = _count(row, "n_nodes"), _count(row, "gpus_per_node")
    sync = f"{row.get('sync', '')} {row.get('framework', '')}".lower()
    network, notes = row.get("network", ""), row.get("notes", "")
    words = f"{sync} {network}"
    collectives = None if "cpu" in row["gpu"].lower() and "nccl" not in sync else "nccl"
    if not re.search("(?<!no )nccl", sync) and re.search("gloo|mpi|cpu", sync):
        collectives = "gloo" if "gloo" in sync else "mpi"
    ddp = re.search(r"ddp|adaptdl|lightning|deepspeed|torch\.distributed", sync)
    precision, *_ = (row.get("precision") or "").split() or ["fp32"]
    stated = row["net_gbps_nominal"].strip()
    link = float(stated) if stated else _rate_in(network)
    rdma = bool(_RDMA.search(words)) and not re.search(r"\btcp\b|ipoib|grpc", words, re.I)
    half = precision in ("amp", "fp16", "bf16")
    batch = row["batch_per_gpu"].strip()
    setup = Setup(
        model=known_as(row["model"]),
        gpu="cpu" if "cpu" in row["gpu"].lower() else row["gpu"],
        nodes=nodes,
        gpus_per_node=gpus,
        batch=_count(row, "batch_per_gpu") if batch else _HALF_BATCH if half else _BATCH,
        link_bps=link * 1e9,
        transport="rdma" if rdma else "tcp",
        precision=precision if precision in ("fp32", "tf32", "amp", "fp16", "bf16") else "fp32",
        framework="ddp" if ddp else "horovod",
        collectives=collectives,
        fusion_bytes=0 if "before tensor fusion" in notes else None if ddp else 64 * MIB,
        cycle_s=None if ddp else 5e-3,
        sockets=16 if _AMAZON.search(network) else 1,
        real_images=(row.get("data") or "synthetic") != "synthetic",
        tuned=not _UNTUNED.search(f"{words} {notes}") and (bool(stated) or rdma),
    )
    images = float(row["images_per_s"].strip() or "nan")
    if images <= 0 or math.isinf(images) or not 0 < link < math.inf:
        raise ValueError("rates must be above 0, and finite")
    source = row.get("source_ref") or row.get("source") or ""
    measured = None if math.isnan(images) else images
    return Run(row["row_id"], row["series_id"], setup, measured, source, row)


def _count(row: Row, name: str) -> int:
    value = float(row[name] or "nan")
    if not (value >= 1 and value.is_integer()):
        raise ValueError(f"{name} is {row[name] or 'empty'}")
    return int(value)


def _rate_in(network: str) -> float:
    if found := re.search(r"(\d+(?:\.\d+)?) ?(?:gbit|gbps|gbe|g\b)", network, re.I):
        return float(found[1])
    kinds = [rate for kind, rate in _KINDS.items() if kind in network.lower()]
    return kinds[0] if kinds else _ETHERNET


def _with_base(run: Run, alone: Sequence[Run]) -> Run:
    """Give a run the rates of one GPU and of one node that its series has in runs of one node."""

    def rate(gpus: int, *same: str) -> float | None:
        """Return images/s of one node with so many GPUs; 0 takes any number, for one of them."""
        found = [
            one.measured / (1 if gpus else one.setup.ranks)
            for one in alone
            if one.measured
            if gpus in (0, one.setup.ranks)
            if all(getattr(one.setup, name) == getattr(run.setup, name) for name in same)
        ]
        return statistics.median(found) if found else None

    exact, near = ("model", "precision", "batch"), ("model", "precision")
    gpus = run.setup.gpus_per_node
    node = rate(gpus, *exact) if gpus > 1 else None
    single = rate(1, *exact) or (None if node else rate(1, *near) or rate(0, *near))
    return replace(run, setup=replace(run.setup, rate=single, node_rate=node))


def filled(rows: Sequence[Row]) -> list[tuple[Run, Prediction]]:
    """Predict the rows of a table that have no `images_per_s`.

    A measured run of the same series on two or more nodes, the fewest, serves as a probe.

    Raises:
        UsageError: As `read`, or a row's model or GPU is in no table.
    """
    known = read(rows)
    probes: dict[tuple[object, ...], Run] = {}
    for run in known:
        one = probes.get(alike(run))
        if run.measured and run.setup.nodes > 1 and (not one or run.setup.nodes < one.setup.nodes):
            probes[alike(run)] = run

    @cache
    def local(like: tuple[object, ...]) -> Calibration | None:
        probe = probes.get(like)
        return calibrated(probe.setup, probe.measured or 0.0) if probe else None

    @cache
    def predicted(setup: Setup, like: tuple[object, ...]) -> Prediction:
        return predict(setup, local(like))

    found = []
    for run in (run for run in known if not run.measured):
        try:
            found.append((run, predicted(run.setup, alike(run))))
        except UsageError as error:
            raise UsageError(f"row {run.row_id}: {error.message}", error.hint) from None
    return found


def alike(run: Run) -> tuple[object, ...]:
    """Return what runs share that differ in their number of nodes only."""
    one = run.setup
    return run.series, one.model, one.gpu, one.batch, one.precision, one.gpus_per_node


def published() -> list[Run]:
    """Return the shipped runs."""
    usable = [row for row in rates.published() if row["n_nodes"] and row["gpus_per_node"]]
    return read(usable)

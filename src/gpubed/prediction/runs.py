"""Reads scaling runs from rows of a table: published ones, and those of `predict --table`."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpubed.core.errors import UsageError
from gpubed.prediction import rates
from gpubed.prediction.model import MIB, Prediction, Setup, calibrated, predict
from gpubed.prediction.shapes import known_as

Row = Mapping[str, str]
NEEDED = (
    "row_id",
    "series_id",
    "model",
    "gpu",
    "n_nodes",
    "gpus_per_node",
    "net_gbps_nominal",
    "batch_per_gpu",
    "images_per_s",
)
# Rates of links that are named by their kind, in Gbit/s, and assumed ones.
_KINDS = {"edr": 100, "hdr": 200, "fdr": 56, "qdr": 32, "slingshot": 200, "infiniband": 100}
_ETHERNET = 10
_RDMA = re.compile(r"rdma|roce(?!-capable)|infiniband|slingshot|aries|\b[efh]dr\b", re.I)
# Amazon's adapters: NCCL opens 2 threads x 8 sockets (src/transport/net_socket.cc:354).
_AMAZON = re.compile(r"\bec2\b|\baws\b|\bp[234]\.|p3dn|g4dn", re.I)
_UNTUNED = re.compile(r"untuned|not tuned|saw |seen|single tcp flow|host bound|loader bound", re.I)
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
    if missing := [name for name in NEEDED if rows and name not in rows[0]]:
        raise UsageError(
            f"the table lacks the columns {', '.join(missing)}",
            f"its first line must name at least {', '.join(NEEDED)}",
        )
    series: dict[str, list[Run]] = defaultdict(list)
    for number, row in enumerate(rows, start=2):
        try:
            run = _run(row)
        except (ValueError, KeyError) as error:
            raise UsageError(
                f"line {number} (row_id {row.get('row_id')}) cannot be read: {error}",
                "write n_nodes, gpus_per_node and batch_per_gpu as numbers",
            ) from None
        series[run.series].append(run)
    return [_with_base(run, series[run.series]) for row in series.values() for run in row]


def _run(row: Row) -> Run:
    nodes, gpus = _count(row, "n_nodes"), _count(row, "gpus_per_node")
    words = " ".join(row.get(name) or "" for name in ("sync", "framework", "network"))
    sync = f"{row.get('sync') or ''} {row.get('framework') or ''}".lower()
    network, notes = row.get("network") or "", row.get("notes") or ""
    library = "nccl"
    if not re.search("(?<!no )nccl", sync) and re.search("gloo|mpi|cpu", sync):
        library = "gloo" if "gloo" in sync else "mpi"
    ddp = re.search(r"ddp|adaptdl|lightning|deepspeed|torch\.distributed", sync)
    precision = (row.get("precision") or "fp32").split()[0]
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
        batch=int(float(batch)) if batch else _HALF_BATCH if half else _BATCH,
        link_bps=link * 1e9,
        transport="rdma" if rdma else "tcp",
        precision=precision if precision in ("fp32", "tf32", "amp", "fp16", "bf16") else "fp32",
        framework="ddp" if ddp else "horovod",
        library=library,
        fusion_bytes=0 if "before tensor fusion" in notes else None if ddp else 64 * MIB,
        cycle_s=None if ddp else 5e-3,
        sockets=16 if _AMAZON.search(network) else 1,
        real_images=(row.get("data") or "synthetic") != "synthetic",
        tuned=not _UNTUNED.search(f"{words} {notes}") and (bool(stated) or rdma),
    )
    images = row["images_per_s"].strip()
    source = row.get("source_ref") or row.get("source") or ""
    return Run(
        row["row_id"], row["series_id"], setup, float(images) if images else None, source, row
    )


def _count(row: Row, name: str) -> int:
    value = int(float(row[name]))
    if value < 1:
        raise ValueError(f"{name} is {value}")
    return value


def _rate_in(network: str) -> float:
    if found := re.search(r"(\d+(?:\.\d+)?) ?(?:gbit|gbps|gbe|g\b)", network, re.I):
        return float(found[1])
    kinds = [rate for kind, rate in _KINDS.items() if kind in network.lower()]
    return kinds[0] if kinds else _ETHERNET


def _with_base(run: Run, series: Iterable[Run]) -> Run:
    """Give a run the rates of one GPU and of one node that its series has, of the same batch."""
    same = [
        one
        for one in series
        if one.measured
        and one.setup.nodes == 1
        and (one.setup.batch, one.setup.precision, one.setup.model)
        == (run.setup.batch, run.setup.precision, run.setup.model)
    ]
    single = [one.measured for one in same if one.setup.gpus_per_node == 1]
    node = [one.measured for one in same if one.setup.gpus_per_node == run.setup.gpus_per_node > 1]
    rate = statistics.median(filter(None, single)) if single else None
    whole = statistics.median(filter(None, node)) if node else None
    return replace(run, setup=replace(run.setup, rate=rate, node_rate=whole))


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
    found = []
    for run in known:
        if run.measured:
            continue
        probe = probes.get(alike(run))
        try:
            local = calibrated(probe.setup, probe.measured or 0.0) if probe else None
            found.append((run, predict(run.setup, local)))
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

"""What a campaign's points are predicted to give, written down before the first of them runs.

Predictions are made of jobs with the arguments of job imagenet. The rate of one rank comes from
earlier runs of the cluster, else from the table of rates; nothing that the campaign measures is
used.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat

from gpubed.campaigns.matrix import Point
from gpubed.campaigns.records import Model
from gpubed.core import files, reading
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.core.units import Moment
from gpubed.hardware import facts
from gpubed.jobs.metrics import is_number
from gpubed.jobs.runs import record as runs
from gpubed.nodes.allocation import Cluster
from gpubed.prediction import model, probed
from gpubed.prediction.forecast import gpu_named
from gpubed.prediction.model import Setup
from gpubed.spec.sections import MOST_GPUS

FILE = "prediction.json"
_START_S = 30.0  # to start and collect a run, until runs of the cluster tell
_PRECISIONS = {"fp32": "fp32", "tf32": "tf32", "fp16": "amp", "bf16": "bf16"}
# What the rate of one rank depends on beside its device; and what else a job must have.
_OF_RATE = ("model", "batch_size", "precision", "image_size", "channels_last")
_NEEDED = {*_OF_RATE, "framework", "overlap", "compression", "steps"}


class Foretold(Model):
    """The prediction of a point: images/s with the bounds of the 90 % interval."""

    images_per_s: PositiveFloat
    low: PositiveFloat
    high: PositiveFloat
    step_s: PositiveFloat
    seconds: float | None = None  # of a run, with its start; none where `epochs` are asked for
    rate_source: str = ""


class _Written(Model):
    """`prediction.json` of a campaign's folder; `sha256` is that of `points`."""

    contract: Literal["gpubed/prediction/1"] = Field(default="gpubed/prediction/1", alias="schema")
    written: Moment
    sha256: str
    points: dict[str, Foretold]


class Known:
    """What a cluster's earlier runs tell: rates of one rank, and the time to start a run."""

    def __init__(self, paths: ClusterPaths) -> None:
        rates, starts = defaultdict[tuple[str, ...], list[float]](list), list[float]()
        for run in runs.every(paths)[0].values():
            told = {name: one for name, one in run.metrics.items() if is_number(one) and one > 0}
            if run.state != "ok" or not run.values.keys() >= _NEEDED or run.metrics.get("emulated"):
                continue
            if run.seconds and "steps" in told and "step_s" in told:
                starts.append(max(0.0, run.seconds - told["steps"] * told["step_s"]))
            if run.world_size == 1 and "images_per_s" in told:
                device = str(run.metrics.get("device")).removeprefix("cuda").strip(": ()")
                rates[_key(gpu_named(device), run.values)].append(told["images_per_s"])
        self.rates = {key: statistics.fmean(found) for key, found in rates.items()}
        self.start_s = statistics.fmean(starts) if starts else _START_S

    def rate(self, setup: Setup) -> float | None:
        """Return the images/s that one rank of a setup was measured to have, if it was."""
        precision = next(own for own, of in _PRECISIONS.items() if of == setup.precision)
        own = (setup.model, setup.batch, precision, None, False)
        return self.rates.get(_key(setup.gpu, dict(zip(_OF_RATE, own, strict=True))))


def _key(gpu: str, values: Mapping[str, Any]) -> tuple[str, ...]:
    return gpu, *(str(values.get(name)) for name in _OF_RATE)


def foretell(
    cluster: Cluster, points: Sequence[Point], values: Sequence[Mapping[str, Any]]
) -> dict[str, Foretold]:
    """Return what points can be foretold to give, by id; `values` are their job's arguments."""
    known, found = Known(cluster.paths), dict[str, Foretold]()
    probe = probed.read(cluster.paths, cluster.allocation.uuid)
    for point, of in zip(points, values, strict=True):
        with suppress(GpubedError):  # such as a model or a GPU without a known rate
            if (setup := _setup(cluster, point, of, known)) is None:
                continue
            at = (setup.transport, setup.link_bps)
            told = model.predict(setup, probe.calibration(*at) if probe else None)
            steps = None if of.get("epochs") else of.get("steps")
            seconds = None if steps is None else known.start_s + steps * told.step_s
            found[point.id] = Foretold(**vars(told), seconds=seconds)
    return found


def write(folder: Path, points: Mapping[str, Foretold], now: datetime) -> None:
    """Write a campaign's predictions, before its first point."""
    if points:
        written = _Written(written=now, sha256=_digest(points), points=dict(points))
        content = written.model_dump_json(by_alias=True, indent=2).encode()
        files.write(folder / FILE, content, durable=True)


def read(folder: Path) -> dict[str, Foretold]:
    """Return the predictions that were written before a campaign began; empty without any.

    Raises:
        Unreadable: The file is damaged, or was changed since.
    """
    path = folder / FILE
    if not path.exists():
        return {}
    document = reading.file(path, f"remove {path} to go on without predictions")
    written = document.json(_Written)
    if written.sha256 != _digest(written.points):
        raise document.refusal("it was changed since: its SHA-256 is another one")
    return written.points


def _digest(points: Mapping[str, Foretold]) -> str:
    content = {id_: one.model_dump() for id_, one in points.items()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _setup(cluster: Cluster, point: Point, values: Mapping[str, Any], known: Known) -> Setup | None:
    """Return the setup of a point; None if the formula does not hold for it."""
    able, network = cluster.allocation.with_ranks, cluster.allocation.experiment
    slots = {node.slots for node in able}
    if not values.keys() >= _NEEDED or len(slots) != 1:
        return None
    if values["framework"] not in ("horovod", "ddp") or not values["overlap"]:
        return None
    per_node = min(slots.pop(), point.ranks or MOST_GPUS)
    nodes = -(-point.ranks // per_node) if point.ranks else point.nodes or len(able)
    link = point.rate_bps or (network and network.rate_bps)
    if (nodes > 1 and not link) or (point.ranks and nodes * per_node != point.ranks):
        return None
    # Simulated GPUs do not compute, the CPU does.
    found = facts.of_cluster(cluster.paths.facts, cluster.allocation).values()
    titles = [gpu.title for one in found if not one.simulated for gpu in one.gpus]
    gpu = gpu_named(titles[0]) if titles else "cpu"
    rate = known.rates.get(_key(gpu, values))
    if rate is None and values["image_size"]:
        return None  # the table's rates are of the usual size
    fusion, cycle = values.get("fusion_mb"), values.get("cycle_ms")
    declared = cluster.plan.spec.networks.experiment
    rdma = declared and declared.rdma and values.get("transport") != "tcp"
    return Setup(
        model=values["model"],
        gpu=gpu,
        nodes=nodes,
        gpus_per_node=per_node,
        batch=values["batch_size"],
        link_bps=float(link or 0),
        transport="rdma" if rdma else "tcp",
        precision=_PRECISIONS[values["precision"]],
        rate=rate,
        framework=values["framework"],
        fusion_bytes=None if fusion is None else fusion * model.MIB,
        cycle_s=None if cycle is None else cycle / 1000,
        compression=values["compression"],
    )

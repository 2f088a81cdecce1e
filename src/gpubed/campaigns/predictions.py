"""What a campaign's points are predicted to give, written down before the first of them runs.

Predictions are made for jobs with the arguments of job imagenet. Rates of one GPU come from earlier
runs of the cluster on one rank, else from the table of rates; nothing that the campaign itself
measures is used.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from gpubed.campaigns.matrix import Point
from gpubed.core import files, reading
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.core.units import Moment
from gpubed.hardware import facts
from gpubed.jobs.jobfile import Job
from gpubed.jobs.runs import record as runs
from gpubed.nodes.allocation import Cluster
from gpubed.prediction import model
from gpubed.prediction.forecast import gpu_named
from gpubed.prediction.model import Setup

FILE = "prediction.json"
_START_S = 30.0  # to start a run and to collect it, until runs of the cluster tell
# Values of the arguments that the formula holds for; others are not predicted.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "framework": ("horovod", "ddp"),
    "overlap": (True,),
    "compression": ("none",),
    "backward_passes_per_step": (1,),
}
_PRECISIONS = {"fp32": "fp32", "fp16": "amp", "bf16": "bf16"}
# What the rate of one rank depends on.
_OF_RATE = ("model", "batch_size", "precision", "image_size", "channels_last")
_RateKey = tuple[Any, ...]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Foretold(_Model):
    """The prediction of a point: images/s with the bounds of the 90 % interval, seconds.

    Attributes:
        seconds: How long a run takes, with its start; None where `epochs` are asked for.
    """

    images_per_s: float = Field(gt=0)
    low: float = Field(gt=0)
    high: float = Field(gt=0)
    step_s: float = Field(gt=0)
    seconds: float | None = None
    rate_source: str = ""


class Written(_Model):
    """`prediction.json` of a campaign's folder; `sha256` is that of `points`."""

    contract: Literal["gpubed/prediction/1"] = Field(default="gpubed/prediction/1", alias="schema")
    written: Moment
    sha256: str
    points: dict[str, Foretold]


class Known:
    """What a cluster's earlier runs tell: rates of one rank, and the time to start a run."""

    def __init__(self, paths: ClusterPaths) -> None:
        rates, starts = dict[_RateKey, list[float]](), list[float]()
        for run in runs.every(paths)[0].values():
            values, measured = run.values, run.metrics
            if run.state != "ok" or "batch_size" not in values or measured.get("emulated"):
                continue
            if run.seconds and isinstance(step := measured.get("step_s"), float):
                starts.append(max(0.0, run.seconds - step * (measured.get("steps") or 0)))
            if run.world_size == 1 and isinstance(rate := measured.get("images_per_s"), float):
                key = (_device(measured.get("device")), *map(values.get, _OF_RATE))
                rates.setdefault(key, []).append(rate)
        self.rates = {key: statistics.fmean(found) for key, found in rates.items()}
        self.start_s = statistics.fmean(starts) if starts else _START_S


def foretell(
    cluster: Cluster, points: Sequence[Point], job_name: str, job: Job
) -> dict[str, Foretold]:
    """Return the predictions of a campaign's points by id, as far as there can be any."""
    if not {"model", "batch_size"} <= job.arguments.keys() or not cluster.allocation.nodes:
        return {}
    known, found = Known(cluster.paths), dict[str, Foretold]()
    for point in points:
        values = job.values(job_name, point.arguments)
        try:
            setup = _setup(cluster, point, values, known)
            told = setup and model.predict(setup)
        except GpubedError:  # such as a model or a GPU without a known rate
            continue
        if told:
            steps = None if values.get("epochs") else values.get("steps")
            seconds = None if steps is None else known.start_s + steps * told.step_s
            wanted = {name: getattr(told, name) for name in ("images_per_s", "low", "high")}
            found[point.id] = Foretold(
                **wanted, step_s=told.step_s, seconds=seconds, rate_source=told.rate_source
            )
    return found


def write(folder: Path, points: Mapping[str, Foretold], now: datetime) -> None:
    """Write a campaign's predictions, before its first point; an earlier file stays."""
    if points and not (folder / FILE).exists():
        written = Written(written=now, sha256=_digest(points), points=dict(points))
        content = written.model_dump_json(by_alias=True, indent=2)
        files.write(folder / FILE, content.encode(), durable=True)


def read(folder: Path) -> Written | None:
    """Return the predictions that were written before a campaign began; None without any.

    Raises:
        Unreadable: The file is damaged, or was changed since.
    """
    path = folder / FILE
    if not path.exists():
        return None
    document = reading.file(path, f"remove {path}, and the report goes without predictions")
    written = document.json(Written)
    if written.sha256 != _digest(written.points):
        raise document.refusal("it was changed since: its SHA-256 is another one")
    return written


def _digest(points: Mapping[str, Foretold]) -> str:
    content = {id_: one.model_dump() for id_, one in points.items()}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _setup(cluster: Cluster, point: Point, values: Mapping[str, Any], known: Known) -> Setup | None:
    usual = all(values.get(name, allowed[0]) in allowed for name, allowed in _PLAIN.items())
    precision = _PRECISIONS.get(values.get("precision", "fp32"))
    able = cluster.allocation.with_ranks
    slots = {node.slots for node in able}
    if not usual or precision is None or len(slots) != 1:
        return None
    per_node, nodes = slots.pop(), point.nodes or len(able)
    if point.ranks:  # on the first nodes
        nodes = -(-point.ranks // per_node)
        per_node = min(per_node, point.ranks)
        if nodes * per_node != point.ranks:
            return None
    network = cluster.allocation.experiment
    link = point.rate_bps or (network and network.rate_bps)
    if nodes > 1 and link is None:
        return None
    gpu = _gpu(cluster)
    rate = known.rates.get((gpu, *map(values.get, _OF_RATE)))
    usual_size = 299 if values["model"] == "inception_v3" else 224
    if rate is None and values.get("image_size") not in (None, usual_size):
        return None  # the table's rates are of the usual size
    rdma = cluster.plan.spec.networks.experiment and cluster.plan.spec.networks.experiment.rdma
    transport = "rdma" if rdma and values.get("transport") != "tcp" else "tcp"
    return Setup(
        model=values["model"],
        gpu=gpu,
        nodes=nodes,
        gpus_per_node=per_node,
        batch=values["batch_size"],
        link_bps=float(link or 0),
        transport=transport if nodes > 1 else "none",
        precision=precision,
        rate=rate,
    )


def _gpu(cluster: Cluster) -> str:
    """Return what ranks compute on: simulated GPUs do not, the CPU does."""
    found = facts.of_cluster(cluster.paths.facts, cluster.allocation).values()
    titles = [gpu.title for one in found if not one.simulated for gpu in one.gpus]
    return gpu_named(titles[0]) if titles else "cpu"


def _device(said: object) -> str:
    """Return the short name of the device in a job's metric, such as `cuda (NVIDIA H200)`."""
    return gpu_named(str(said).removeprefix("cuda"))

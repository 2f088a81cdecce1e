"""Fits the numbers of the model to published runs, and compares predictions with held-out ones.

A source is held out as a whole: everything that its publisher measured, on whatever page.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from gpubed.prediction import model, rates, runs
from gpubed.prediction.model import Calibration, Prediction, Setup
from gpubed.prediction.runs import Run
from gpubed.prediction.shapes import shape

# What is fitted: the value and its standard deviation of the logarithm before any run is seen.
PRIORS = {
    # 0.94 is the payload of frames of 1500 bytes; a ring pauses between its chunks.
    "tcp_share": (0.85, 0.12),
    # One ring carries 14.8 of 32 Gbit/s, "not more than 60 %" (nccl#209); 36-41 of 100 Gbit/s with
    # two threads (nccl#450).
    "socket_bps": (45e9, 0.4),
    # NCCL's 12 GB/s of a 100 Gbit/s adapter (src/graph/topo.h).
    "rdma_share": (0.96, 0.05),
    "contention": (0.05, 0.7),
    # 8 GPUs of a DGX-1 reach 0.96-0.98 with fp32 (NVIDIA DeepLearningExamples): over 1.42 of Blom.
    "spread": (0.02, 0.5),
    "overhead": (0.02, 0.7),
    # "At most 15 %" (arXiv:2006.10103).
    "slowdown": (0.10, 0.6),
}
# Gloo reaches 1.07 GB/s with a core (gloo#248); fitted to runs that sum on CPUs alone.
CPU_PRIORS = {"cpu_bps": (8.6e9, 0.5)}
UBER = "Horovod (Uber)"
_RESIDUAL = 0.05  # standard deviation of a run's logarithm that the fit assumes
_WEIGHT = 4.0  # runs that a source counts for, whatever it has


def subset(run: Run) -> str:
    """Return `tuned`, `assumed`, `untuned`, or nothing for a run that is not predicted.

    This rule was written before any number was fitted. A run is *tuned* if

    - NCCL averages its gradients, called by Horovod or torch's DDP, on two or more nodes;
    - images are synthetic: real ones measure reading and decoding, which the table does not tell;
    - a rate, or an efficiency with the one-GPU rate of the same source, is printed for one model;
    - the link's rate and transport are stated;
    - its source publishes it as a scaling result: not as a fault to be explained, not before
      Horovod had tensor fusion, not as a trace for a scheduler, and not about a competitor.

    *assumed*: the same, but the rate of its InfiniBand is not in the source. *untuned*: other
    runs of an allreduce with a stated rate of one GPU or node. Parameter servers are not predicted.
    """
    row, setup = run.row, run.setup
    if setup.nodes < 2 or not re.search(r"allreduce|horovod|ddp", row["sync"], re.I):
        return ""
    if not (run.measured and (setup.rate or setup.node_rate)) or "(" in setup.model:
        return ""
    ours = (
        re.search(r"(?<!no )nccl", row["sync"], re.I) is not None
        and re.search(r"horovod|torch ddp", f"{row['sync']} {row['framework']}", re.I) is not None
        and row["data"] == "synthetic"
        and row["grade"] in "AB"
        and re.search(r"untuned|before tensor fusion|competitor", f"{row['sync']} {row['notes']}")
        is None
        and not row["source"].startswith(("Pollux", "Gavel"))
    )
    if not ours:
        return "untuned"
    if not row["net_gbps_nominal"]:
        return "assumed" if setup.transport == "rdma" else "untuned"
    return "tuned"


def cases() -> list[Run]:
    """Return the published runs that are predicted.

    An efficiency is turned into a rate by the one-GPU rate of its GPU, model and batch.
    """
    found = []
    for run in runs.published():
        row, setup = run.row, run.setup
        if (
            run.measured is None
            and row["scaling_efficiency"]
            and row["source"].startswith("Horovod")
        ):
            one = rates.lookup(setup.gpu, setup.model, shape(setup.model), setup.batch, "fp32")
            rate = one.images_per_s
            images = float(row["scaling_efficiency"]) * setup.ranks * rate
            run = replace(run, measured=images, setup=replace(setup, rate=rate))
        group = subset(run)
        if group == "untuned" and setup.transport == "tcp" and owner(run) != UBER:
            run = replace(run, setup=replace(run.setup, tuned=False))
        if group:
            found.append(run)
    return found


def owner(run: Run) -> str:
    """Return who published a run."""
    source = run.row["source"]
    names = {"Horovod": UBER, "CSC": "CSC", "Pollux": "Pollux/Sia", "Gavel": "Gavel"}
    known = [name for start, name in names.items() if source.startswith(start)]
    return known[0] if known else re.sub(r".*github.com/|/issues|/pull", "", run.source)


def fit(seen: Sequence[Run]) -> Calibration:
    """Return the numbers that suit tuned runs best, and those of CPUs that sum gradients."""
    tuned = [run for run in seen if subset(run) in ("tuned", "assumed")]
    found = _fitted(PRIORS, tuned, Calibration())
    return _fitted(CPU_PRIORS, [run for run in seen if _by_cpu(run)], found)


def _by_cpu(run: Run) -> bool:
    stated = bool(run.row["net_gbps_nominal"])
    return stated and not run.setup.by_nccl and run.setup.fusion_bytes != 0


def _fitted(
    priors: dict[str, tuple[float, float]], seen: Sequence[Run], start: Calibration
) -> Calibration:
    owners = [owner(run) for run in seen]
    weights = [math.sqrt(_WEIGHT / owners.count(one)) / _RESIDUAL for one in owners]
    centre = np.log([value for value, _ in priors.values()])
    widths = np.array([width for _, width in priors.values()])

    def calibration(logs: np.ndarray) -> Calibration:
        values: Any = dict(zip(priors, map(float, np.exp(logs)), strict=True))
        return replace(start, **values)

    def misses(logs: np.ndarray) -> np.ndarray:
        numbers = calibration(logs)
        off = [weight * _miss(run, numbers) for run, weight in zip(seen, weights, strict=True)]
        return np.concatenate([off, (logs - centre) / widths])

    return calibration(least_squares(misses, centre, loss="soft_l1", diff_step=1e-3).x)


def _miss(run: Run, numbers: Calibration) -> float:
    """Return the logarithm of the predicted over the measured rate."""
    step = model.step_time(_without_node(run), numbers)
    return math.log(run.setup.ranks * run.setup.batch / step / (run.measured or math.nan))


def _without_node(run: Run) -> Setup:
    """Return the set-up without the rate of a node, unless that of one GPU is not known."""
    return replace(run.setup, node_rate=None if run.setup.rate else run.setup.node_rate)


@dataclass(frozen=True)
class Errors:
    """Relative errors of a method on a group of runs, and the share within its intervals."""

    group: str
    method: str
    runs: int
    mape: float
    median: float
    p90: float
    coverage: float | None


@dataclass(frozen=True)
class Point:
    """A published run, its group, and what each method predicts with its source left out."""

    run: Run
    group: str
    found: dict[str, Prediction | float]


GROUPS = {
    "tuned": "tuned, link stated",
    "assumed": "tuned, InfiniBand's rate assumed",
    "untuned": "untuned or not comparable",
}
LINEAR, ADDITIVE, POLLUX = "linear", "no overlap, line rate", "p-norm (Pollux)"
OURS, PROBED = "gpubed predict", "gpubed predict, after a probe on 2 nodes"


def points(by: Callable[[Run], str] = owner, groups: Sequence[str] = tuple(GROUPS)) -> list[Point]:
    """Return the runs of some groups, predicted with their source (or what `by` says) held out."""
    known = cases()
    fitting = {by(run) for run in known if subset(run) != "untuned" or _by_cpu(run)}
    held: dict[str, tuple[Calibration, tuple[float, ...]]] = {}
    probes = {runs.alike(run): run for run in known if run.setup.nodes == 2}
    found = []
    for run in (run for run in known if subset(run) in groups):
        out = by(run) if by(run) in fitting else ""  # else nothing of it is in the fit
        if out not in held:
            rest = [one for one in known if by(one) != out]
            held[out] = fit(rest), _p_norm(rest)
        numbers, norm = held[out]
        setup = _without_node(run)
        alone, wire = _alone(setup), _on_wire(setup)
        steps = {LINEAR: alone, ADDITIVE: alone + wire, POLLUX: _normed(setup, norm)}
        methods: dict[str, Prediction | float]
        methods = {name: setup.ranks * setup.batch / step for name, step in steps.items()}
        methods[OURS] = model.predict(setup, numbers)
        if (small := probes.get(runs.alike(run))) and small.setup.nodes < setup.nodes:
            local = model.calibrated(_without_node(small), small.measured or math.nan, numbers)
            methods[PROBED] = model.predict(setup, local)
        found.append(Point(run, subset(run), methods))
    return found


def _alone(setup: Setup) -> float:
    """Return the step time of one GPU."""
    return setup.batch / (setup.rate or (setup.node_rate or math.nan) / setup.gpus_per_node)


def _on_wire(setup: Setup) -> float:
    """Return seconds of a ring at line rate."""
    size = 4 * shape(setup.model).parameters
    return 2 * (setup.ranks - 1) / setup.ranks * size * 8 / setup.link_bps


def _normed(setup: Setup, norm: Sequence[float]) -> float:
    """Return Pollux's (T_grad^g + T_sync^g)^(1/g).

    T_sync = a + b (nodes - 2) + wire / share; the wire's part is not Pollux's, which knows no link.
    """
    start, slope, share_tcp, share_rdma, power = norm
    share = share_rdma if setup.transport == "rdma" else share_tcp
    sync = start + slope * (setup.nodes - 2) + _on_wire(setup) / share
    return float((_alone(setup) ** power + sync**power) ** (1 / power))


def _p_norm(seen: Sequence[Run]) -> tuple[float, ...]:
    tuned = [run for run in seen if subset(run) in ("tuned", "assumed")]

    def misses(norm: np.ndarray) -> list[float]:
        steps = (run.setup.ranks * run.setup.batch / (run.measured or math.nan) for run in tuned)
        return [
            math.log(_normed(r.setup, list(norm)) / step)
            for r, step in zip(tuned, steps, strict=True)
        ]

    bounds = ([0, 0, 0.1, 0.1, 1], [0.1, 0.01, 1, 1, 10])
    return tuple(least_squares(misses, [0.01, 1e-4, 0.6, 0.9, 2], bounds=bounds, loss="soft_l1").x)


@cache
def table() -> tuple[Errors, ...]:
    """Return the errors of each method on each group of runs, and by source on the tuned ones."""
    known, lines = points(), []
    for group, title in GROUPS.items():
        some = [point for point in known if point.group == group]
        lines += [_errors(title, name, some) for name in (LINEAR, ADDITIVE, POLLUX, OURS)]
        if more := [point for point in some if PROBED in point.found]:
            lines += [_errors(f"{title}, more than 2 nodes", name, more) for name in (OURS, PROBED)]
    tuned = [point for point in known if point.group != "untuned"]
    for name in dict.fromkeys(owner(point.run) for point in tuned):
        some = [point for point in tuned if owner(point.run) == name]
        lines.append(_errors(f"tuned, {name}", OURS, some))
    by_model = points(lambda run: run.setup.model, ["tuned"])
    return *lines, _errors("tuned, a model held out", OURS, by_model)


def _errors(group: str, method: str, some: Sequence[Point]) -> Errors:
    off, inside = [], []
    for point in some:
        value, measured = point.found[method], point.run.measured or math.nan
        if isinstance(value, Prediction):
            inside.append(value.low <= measured <= value.high)
            value = value.images_per_s
        off.append(abs(value / measured - 1))
    figures = statistics.fmean(off), statistics.median(off), float(np.quantile(off, 0.9))
    return Errors(group, method, len(off), *figures, statistics.fmean(inside) if inside else None)

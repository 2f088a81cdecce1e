"""The metrics of a run, as written to `metrics.json`."""

from __future__ import annotations

import json
import os
import socket
import statistics
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import timing
import torch
import transport
from averaging import Averaging
from timing import PHASES
from training import Training

# From so many steps on, a new training must have learned something.
LEARNING = 100
_MEANS = ("step_s", "step_sd_s", *(f"{p}{sd}_s" for p in PHASES for sd in ("", "_sd")))


def metrics(training: Training) -> dict[str, Any]:
    """The metrics of the whole run, equal on all ranks; in seconds, bytes, bit/s."""
    averaging, given = training.averaging, training.settings
    figures = timing.summary(training.clock)
    if averaging.waits_throughout:
        figures = timing.without_sharding(figures, training.alone_s)
    mine = {
        "rank": averaging.rank,
        "host": os.environ.get("GPUBED_NODE") or os.uname().nodename,
        "device": _device(training),
        **figures,
        **training.use,
    }
    ranks = averaging.gather(mine)
    means = {name: _mean([rank[name] for rank in ranks]) for name in _MEANS}
    went_by = transport.told(training.device, given.out)
    # A step is over when it is over on all ranks.
    plan = training.schedule
    images_per_s = plan.images_per_step / max(rank["step_s"] for rank in ranks)
    first, last = training.losses()
    return {
        "images_per_s": images_per_s,
        "images_per_s_per_rank": images_per_s / averaging.size,
        **means,
        "epoch_s": training.feed.images / images_per_s,
        "steps": plan.total - plan.start,
        "timed_steps": training.clock.steps,
        "epochs": max(plan.total, plan.resumed_at) / plan.per_epoch,
        "resumed_at": plan.resumed_at,
        **_stragglers(ranks),
        **_traffic(training, means["exposed_communication_s"]),
        "loss_first": first,
        "loss": last,
        "loss_fall": first - last if _is_learning(training) else None,
        "val_accuracy": training.accuracy,
        "parameters": training.parameters,
        "checkpoint_failures": training.keeper.failures if given.checkpoint else None,
        **_use(ranks),
        **averaging.tuned(),
        "world_size": averaging.size,
        "framework": given.framework,
        "model": given.model,
        "precision": given.precision,
        "device": ranks[0]["device"],
        "simulated": bool(os.environ.get("GPUBED_SIMULATED")),
        "emulated": given.emulate,
        "emulated_compute_s": given.emulate and given.batch_size / given.emulated_rate,
        "time_factor": given.time_factor,
        "fused_mb": averaging.fused_mb,
        "versions": _versions(averaging),
        "transport": went_by,
        "interface": (interface := _interface(averaging.size, went_by)),
        "address": _address(interface),
        "ranks": ranks,
    }


def _device(training: Training) -> str:
    if gpu := training.settings.emulate:
        return f"emulated compute of {gpu}"
    return os.environ.get("GPUBED_DEVICE_NAME") or str(training.device)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def _interface(ranks: int, went_by: str) -> str | None:
    """The network interface of the gradients; None if no interface carried any."""
    carried = ranks > 1 and transport.is_tcp(went_by)
    return os.environ.get("HOROVOD_GLOO_IFACE", "") if carried else None


def _address(interface: str | None) -> str | None:
    """The interface's first IPv4 address."""
    found = psutil.net_if_addrs().get(interface or "", [])
    return next((one.address for one in found if one.family == socket.AF_INET), None)


def _is_learning(training: Training) -> bool:
    """Whether the loss must fall: not for noise, a few steps, or a resumed training."""
    plan = training.schedule
    return bool(training.settings.dataset) and not plan.start and plan.total >= LEARNING


def _stragglers(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """The rank that computes longest, and its ratio to the median of the others."""
    if any(rank["compute_s"] is None for rank in ranks):
        return {"slowest_rank": None, "straggler_ratio": None}
    *others, slowest = sorted(ranks, key=lambda rank: rank["compute_s"])
    # Without its own time, which of two ranks would be half of the median.
    median = statistics.median(rank["compute_s"] for rank in others) if others else None
    return {
        # As text, since repetitions would average a number.
        "slowest_rank": f"rank {slowest['rank']} on {slowest['host']}",
        "straggler_ratio": slowest["compute_s"] / median if median else None,
    }


def _traffic(training: Training, exposed_s: float | None) -> dict[str, Any]:
    """Bytes that each rank must send for a step, and their rate if no computation hides it."""
    averaging, weights = training.averaging, training.parameters
    least = averaging.sent_bytes_per_step(weights)
    is_exposed = averaging.size > 1 and not training.settings.overlap
    return {
        "gradient_bytes": weights * averaging.gradient_width,
        "sent_bytes_per_step": least,
        "busbw_bps": 8 * least / exposed_s if is_exposed and exposed_s else None,
    }


def _use(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Means of the ranks' use of CPU, GPU and network, and their largest use of memory."""

    def known(name: str) -> list[float]:
        return [rank[name] for rank in ranks if rank[name] is not None]

    means = ("cpu_percent", "gpu_percent", "sent_bps", "received_bps")
    most = ("memory_bytes", "gpu_memory_bytes")
    return {
        **{name: statistics.fmean(known(name)) if known(name) else None for name in means},
        **{name: max(known(name), default=None) for name in most},
    }


def _versions(averaging: Averaging) -> dict[str, str | None]:
    found: dict[str, str | None] = {
        "torch": torch.__version__,
        "torchvision": version("torchvision"),
        **dict.fromkeys(("cuda", "cudnn", "nccl")),
    }
    if torch.cuda.is_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
        cudnn = str(torch.backends.cudnn.version())
        found |= {"cuda": torch.version.cuda, "cudnn": cudnn, "nccl": nccl}
    return {**found, **averaging.versions()}


def write(figures: dict[str, Any], folder: Path) -> None:
    """Writes `metrics.json` atomically."""
    draft = folder / ".metrics.json"
    draft.write_text(json.dumps(figures, indent=2) + "\n")
    draft.replace(folder / "metrics.json")

"""Compares predictions with published runs that the fit has not seen."""

from __future__ import annotations

import re
from dataclasses import replace

from gpubed.prediction import rates, runs
from gpubed.prediction.runs import Run
from gpubed.prediction.shapes import shape


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
    if not (run.measured and (setup.rate or setup.node_rate)):
        return ""
    ours = (
        re.search(r"(?<!no )nccl", row["sync"], re.I) is not None
        and re.search(r"horovod|torch ddp", f"{row['sync']} {row['framework']}", re.I) is not None
        and row["data"] == "synthetic"
        and row["grade"] in "AB"
        and re.search(r"untuned|before tensor fusion|competitor", f"{row['sync']} {row['notes']}") is None
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
        if run.measured is None and row["scaling_efficiency"] and row["source"].startswith("Horovod"):
            one = rates.lookup(setup.gpu, setup.model, shape(setup.model), setup.batch, "fp32")
            rate = one.images_per_s
            images = float(row["scaling_efficiency"]) * setup.ranks * rate
            run = replace(run, measured=images, setup=replace(setup, rate=rate))
        if subset(run):
            found.append(run)
    return found

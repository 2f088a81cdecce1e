"""gpubed predict."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

from typer import Option

from gpubed.cli.options import Json
from gpubed.cli.ui import UI
from gpubed.core.errors import UsageError
from gpubed.core.units import format_rate, parse_rate
from gpubed.prediction import model, runs, shapes
from gpubed.prediction.model import Calibration, Prediction, Setup

EXAMPLE = "gpubed predict --gpu v100 --nodes 1-10 --link '1 Gbit/s,10 Gbit/s'"
PLACE = ("Experiments", 15)
_T = TypeVar("_T")
_MOST = 10_000  # rows of a table of settings


def command(
    model_name: str = Option("resnet50", "--model", help="Of the table of models."),
    model_from: str | None = Option(
        None, "--model-from", help="Your own: package:function or file.py:function that makes it."
    ),
    python: Path | None = Option(None, "--python", help="Interpreter with torch, for the above."),
    gpu: str = Option("v100", "--gpu", help="Such as v100 or a100; cpu for none."),
    nodes: str = Option("1-10", "--nodes", help="Numbers of nodes: 4, or 1-10, or 1,2,4."),
    gpus: int = Option(1, "--gpus-per-node", help="Ranks of each node."),
    batch: str = Option("64", "--batch", help="Images per rank and step; several, as nodes."),
    link: str = Option("10 Gbit/s", "--link", help="Rate between nodes; several with commas."),
    transport: str = Option("tcp", "--transport", help="tcp or rdma."),
    precision: str = Option("fp32", "--precision", help="fp32, tf32, amp, fp16 or bf16."),
    rate: float | None = Option(None, "--rate", help="Images/s of one GPU, where you know it."),
    node_rate: float | None = Option(None, "--node-rate", help="Images/s of one node, likewise."),
    framework: str = Option("horovod", "--framework", help="horovod or ddp."),
    library: str | None = Option(
        None, "--library", help="What averages: nccl, gloo or mpi.", show_default="by GPU"
    ),
    fusion_mb: float | None = Option(
        None, "--fusion-mb", help="MiB that travel together.", show_default="the framework's"
    ),
    cycle_ms: float | None = Option(
        None, "--cycle-ms", help="Horovod's cycle time.", show_default="1"
    ),
    compression: str = Option("none", "--compression", help="none, or fp16 gradients."),
    sockets: int = Option(1, "--sockets", help="TCP connections between two nodes."),
    nics: int = Option(1, "--nics", help="Adapters per node that carry gradients."),
    algorithm: str = Option("auto", "--algorithm", help="ring, tree, auto or hierarchical."),
    input_rate: float | None = Option(
        None, "--input-rate", help="Images/s that a node reads.", show_default="no limit"
    ),
    real_images: bool = Option(False, "--real-images", help="They are read and decoded."),
    untuned: bool = Option(False, "--untuned", help="Nobody has tuned link and software."),
    measured_link: str | None = Option(
        None, "--measured-link", help="What an allreduce carried between two nodes: 6 Gbit/s."
    ),
    table: Path | None = Option(
        None, "--table", help="CSV of runs: predicts those without images_per_s."
    ),
    validate: bool = Option(False, "--validate", help="Compare with published runs, held out."),
    as_json: Json = False,
) -> int:
    """Predict images/s, step time and efficiency of a training."""
    ui = UI(as_json)
    if validate:
        return _validate(ui)
    if table:
        return _table(ui, table)
    setup = Setup(
        model=model_name,
        gpu=gpu,
        nodes=1,
        gpus_per_node=gpus,
        batch=1,
        link_bps=0,
        transport=transport,
        precision=precision,
        rate=rate,
        node_rate=node_rate,
        framework=framework,
        library=library,
        fusion_bytes=None if fusion_mb is None else fusion_mb * model.MIB,
        cycle_s=None if cycle_ms is None else cycle_ms / 1000,
        compression=compression,
        sockets=sockets,
        nics=nics,
        algorithm=algorithm,
        input_rate=input_rate,
        real_images=real_images,
        tuned=not untuned,
        shape=shapes.from_function(model_from, str(python) if python else None)
        if model_from
        else None,
    )
    measured = _listed("--measured-link", measured_link, parse_rate)[0] if measured_link else None
    return _settings(ui, setup, nodes, batch, link, Calibration(effective_bps=measured))


def _settings(
    ui: UI, setup: Setup, nodes: str, batch: str, link: str, calibration: Calibration
) -> int:
    """Predict every combination of nodes, batches and links."""
    wanted = list(
        itertools.product(
            _listed("--link", link, parse_rate), _numbers("--batch", batch), _numbers("--nodes", nodes)
        )
    )
    if len(wanted) > _MOST:
        raise UsageError(f"{len(wanted)} rows are too many", f"ask for {_MOST} at most")
    found: list[tuple[Setup, Prediction]] = []
    for rate, images, count in wanted:
        one = replace(setup, link_bps=float(rate), batch=images, nodes=count)
        found.append((one, model.predict(one, calibration)))
    rows = [
        {
            "nodes": one.nodes,
            "ranks": one.ranks,
            "batch": one.batch,
            "link_bps": one.link_bps,
            **asdict(predicted),
        }
        for one, predicted in found
    ]
    ui.document("predict", {"model": setup.model, "gpu": setup.gpu, "rows": rows})
    ui.table(
        ["nodes", "link", "batch", "images/s", "90 %", "step", "efficiency", "beside compute"],
        [_row(one, predicted) for one, predicted in found],
    )
    ui.say(f"one-GPU rate: {found[0][1].rate_source}")
    return 0


def _row(one: Setup, predicted: Prediction) -> list[str]:
    share = predicted.parts[predicted.dominates] / predicted.step_s
    words = predicted.dominates.replace("_", " ")
    return [
        str(one.nodes),
        format_rate(one.link_bps) if one.nodes > 1 else "",
        str(one.batch),
        f"{predicted.images_per_s:,.4g}",
        f"{predicted.low:,.4g} to {predicted.high:,.4g}",
        f"{1000 * predicted.step_s:,.4g} ms",
        f"{predicted.efficiency:.0%}",
        f"{words} {share:.0%}" if share >= 0.005 else "",
    ]


def _table(ui: UI, path: Path) -> int:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read: {error}", "give a CSV file") from None
    found = [
        {
            "row_id": run.row_id,
            "images_per_s": predicted.images_per_s,
            "low": predicted.low,
            "high": predicted.high,
        }
        for run, predicted in runs.filled(rows)
    ]
    ui.document("predict", {"rows": found})
    ui.table(
        ["row_id", "images_per_s", "low", "high"],
        [[one["row_id"], *(f"{float(one[key]):.4g}" for key in list(one)[1:])] for one in found],
    )
    return 0


def _validate(ui: UI) -> int:
    from gpubed.prediction import validation  # takes a second to import

    with ui.working("fitting with each source held out"):
        lines = validation.table()
    ui.document("predict", {"errors": [asdict(line) for line in lines]})
    ui.table(
        ["runs", "method", "n", "MAPE", "median", "90 % of runs", "within interval"],
        [
            [
                line.group,
                line.method,
                line.runs,
                f"{line.mape:.1%}",
                f"{line.median:.1%}",
                f"{line.p90:.1%}",
                "" if line.coverage is None else f"{line.coverage:.0%}",
            ]
            for line in lines
        ],
    )
    return 0


def _numbers(option: str, text: str) -> list[int]:
    return list(itertools.chain.from_iterable(_listed(option, text, _range)))


def _range(text: str) -> Iterator[int]:
    first, dash, last = text.partition("-")
    low, high = int(first), int(last if dash else first)
    if not 1 <= low <= high <= 100_000:
        raise ValueError("must count up, from 1 at least")
    return iter(range(low, high + 1))


def _listed(option: str, text: str, read: Callable[[Any], _T]) -> list[_T]:
    try:
        return [read(part.strip()) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: {error}", f"gpubed predict --help says {option}") from None

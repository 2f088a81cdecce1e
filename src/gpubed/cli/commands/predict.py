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


def command(
    model_name: str = Option("resnet50", "--model", help="Of the table of models."),
    model_from: str | None = Option(None, help="Your own: package:function or file.py:function."),
    python: str | None = Option(None, help="Interpreter with torch, for --model-from."),
    gpu: str = Option("v100", help="Such as v100 or a100; cpu for none."),
    nodes: str = Option("1-10", help="Numbers of nodes: 4, or 1-10, or 1,2,4."),
    gpus_per_node: int = Option(1, help="Ranks of each node."),
    batch: str = Option("64", help="Images per rank and step; several, as nodes."),
    link: str = Option("10 Gbit/s", help="Rate between nodes; several with commas."),
    transport: str = Option("tcp", help="tcp or rdma."),
    precision: str = Option("fp32", help="fp32, tf32, amp, fp16 or bf16."),
    rate: float | None = Option(None, help="Images/s of one GPU, where you know it."),
    node_rate: float | None = Option(None, help="Images/s of one node, likewise."),
    framework: str = Option("horovod", help="horovod or ddp."),
    library: str | None = Option(None, help="nccl, gloo or mpi; by default nccl on GPUs."),
    fusion_mb: float | None = Option(None, help="MiB that travel together, unless the default."),
    cycle_ms: float | None = Option(None, help="Horovod's cycle time, unless the default."),
    compression: str = Option("none", help="none, or fp16 gradients."),
    sockets: int = Option(1, help="TCP connections between two nodes."),
    nics: int = Option(1, help="Adapters per node that carry gradients."),
    algorithm: str = Option("auto", help="ring, tree, auto or hierarchical."),
    input_rate: float | None = Option(None, help="Images/s that a node reads, if it is limited."),
    real_images: bool = Option(False, "--real-images", help="They are read and decoded."),
    untuned: bool = Option(False, "--untuned", help="Link and software may not be in order."),
    measured_link: str | None = Option(None, help="What an allreduce carried between two nodes."),
    table: Path | None = Option(None, help="CSV of runs: predicts those without images_per_s."),
    validate: bool = Option(False, "--validate", help="Compare with published runs, held out."),
    as_json: Json = False,
) -> int:
    """Predict images/s, step time and efficiency of a training."""
    ui = UI(as_json)
    if validate:
        return _validate(ui)
    if table:
        return _table(ui, table)
    own = shapes.from_function(model_from, python) if model_from else None
    setup = Setup(
        own.name if own else model_name,
        gpu,
        nodes=1,
        gpus_per_node=gpus_per_node,
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
        shape=own,
    )
    carried = _listed("--measured-link", measured_link, parse_rate)[0] if measured_link else None
    links = _listed("--link", link, parse_rate)
    sizes, counts = _numbers("--batch", batch), _numbers("--nodes", nodes)
    found = [
        (one, model.predict(one, Calibration(effective_bps=carried)))
        for rate_of_link, size, count in itertools.product(links, sizes, counts)
        for one in [replace(setup, link_bps=float(rate_of_link), batch=size, nodes=count)]
    ]
    keys = ("nodes", "ranks", "batch", "link_bps")
    rows = [{key: getattr(one, key) for key in keys} | asdict(of) for one, of in found]
    ui.document("predict", {"model": setup.model, "gpu": gpu, "rows": rows})
    columns = ("nodes", "link", "batch", "images/s", "90 %", "step", "efficiency", "beside compute")
    ui.table(columns, [_row(one, predicted) for one, predicted in found])
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
    keys = ("images_per_s", "low", "high")
    found = [(run.row_id, {key: getattr(of, key) for key in keys}) for run, of in runs.filled(rows)]
    ui.document("predict", {"rows": [{"row_id": row, **figures} for row, figures in found]})
    shown = [(row, *(f"{figure:.4g}" for figure in figures.values())) for row, figures in found]
    ui.table(("row_id", *keys), shown)
    return 0


def _validate(ui: UI) -> int:
    from gpubed.prediction import validation  # takes a second to import

    with ui.working("fitting with each source held out"):
        lines = validation.table()
    ui.document("predict", {"errors": [asdict(line) for line in lines]})
    shown = [
        [line.group, line.method, line.runs]
        + [_percent(share) for share in (line.mape, line.median, line.p90, line.coverage)]
        for line in lines
    ]
    ui.table(("runs", "method", "n", "mean", "median", "90 % below", "within interval"), shown)
    return 0


def _percent(share: float | None) -> str:
    return "" if share is None else f"{share:.1%}"


def _numbers(option: str, text: str) -> list[int]:
    return list(itertools.chain.from_iterable(_listed(option, text, _range)))


def _range(text: str) -> Iterator[int]:
    first, dash, last = text.partition("-")
    low, high = int(first), int(last if dash else first)
    if not 1 <= low <= high < 10_000:
        raise ValueError("must count up, from 1 to 9999")
    return iter(range(low, high + 1))


def _listed(option: str, text: str, read: Callable[[Any], _T]) -> list[_T]:
    try:
        return [read(part.strip()) for part in text.split(",")]
    except ValueError as error:
        hint = "write 4, 1-10 or 1,2,4 for numbers, 1 Gbit/s,10 Gbit/s for rates"
        raise UsageError(f"{option} {text!r}: {error}", hint) from None

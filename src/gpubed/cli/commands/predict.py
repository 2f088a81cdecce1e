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
from gpubed.core import files
from gpubed.core.errors import UsageError
from gpubed.core.paths import Project
from gpubed.core.units import parse_bytes, parse_rate
from gpubed.prediction import model, questions, rates, runs, shapes
from gpubed.prediction.model import Calibration, Setup
from gpubed.prediction.questions import Answer, Questions

EXAMPLE = "gpubed predict --gpu v100 --nodes 1-10 --link '1 Gbit/s,10 Gbit/s'"
PLACE = ("Experiments", 15)
_T = TypeVar("_T")


def command(
    model_name: str = Option("resnet50", "--model", help="Of the table of models."),
    model_from: str | None = Option(None, help="Your own: package:function or file.py:function."),
    python: str | None = Option(None, help="Interpreter with torch, for --model-from."),
    gpu: str = Option("v100", help="Such as v100 or a100; cpu for none."),
    nodes: str | None = Option(None, help="Numbers of nodes: 4, or 1,2,4; 1-10 by default."),
    gpus_per_node: int = Option(1, help="Ranks of each node."),
    batch: str = Option("64", help="Images per rank and step; several, as nodes."),
    link: str | None = Option(
        None, "--link", "--links", help="Between nodes, 10 Gbit/s by default; several by commas."
    ),
    transport: str = Option("tcp", help="tcp or rdma."),
    precision: str = Option("fp32", help="fp32, tf32, amp, fp16 or bf16."),
    rate: float | None = Option(None, min=0.001, help="Images/s of one GPU, where you know it."),
    node_rate: float | None = Option(None, min=0.001, help="Images/s of one node, likewise."),
    framework: str = Option("horovod", help="horovod or ddp."),
    collectives: str | None = Option(None, help="nccl, gloo or mpi; by default nccl on GPUs."),
    fusion_mb: float | None = Option(None, help="MiB that travel together, unless the default."),
    cycle_ms: float | None = Option(None, help="Horovod's cycle time, unless the default."),
    compression: str = Option("none", help="none, or fp16 gradients."),
    sockets: int = Option(1, help="TCP connections between two nodes."),
    nics: int = Option(1, help="Adapters per node that carry gradients."),
    algorithm: str = Option("auto", help="ring, tree, auto or hierarchical."),
    input_rate: float | None = Option(None, help="Images/s that a node reads, if it is limited."),
    real_images: bool = Option(False, "--real-images", help="They are read and decoded."),
    untuned: bool = Option(False, "--untuned", help="Link and software may not be in order."),
    measured_link: str | None = Option(
        None, help="What an allreduce carried on --link (the first)."
    ),
    target: float | None = Option(
        None, min=1, help="Images/s: which nodes and link at the least cost?"
    ),
    hours: float | None = Option(
        None, min=0.01, help="Which nodes and link take no longer for the --epochs?"
    ),
    hide_communication: bool = Option(False, "--hide-communication", help="Which batch does?"),
    memory: str | None = Option(None, help="Does it fit a GPU of so much, such as 16 GB?"),
    optimizer: str = Option("sgd", help="For --memory: sgd, sgd-plain, adam or adamw."),
    epochs: int | None = Option(None, min=1, help="How many hours and node-hours do they take?"),
    dataset_size: int = Option(1_281_167, min=1, help="Images of an epoch."),
    page: Path | None = Option(None, help="Write a page with sliders for all of these."),
    history: bool = Option(False, "--history", help="How far predictions were off, here, so far."),
    table: Path | None = Option(None, help="CSV of runs: predicts those without images_per_s."),
    validate: bool = Option(False, "--validate", help="Compare with published runs, held out."),
    as_json: Json = False,
) -> int:
    """Predict images/s, step time and efficiency of a training."""
    ui = UI(as_json)
    if validate:
        return _validate(ui)
    if history:
        return _history(ui)
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
        collectives=collectives,
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
    carried = _one("--measured-link", measured_link, _link) if measured_link else None
    links = [float(one) for one in _listed("--link", link or "10 Gbit/s", _link)]
    sizes, counts = _numbers("--batch", batch), _numbers("--nodes", nodes or "1-10")
    setup = replace(setup, nodes=max(counts), batch=sizes[0], link_bps=links[0])
    if carried and carried > links[0] * nics:
        raise UsageError(
            f"--measured-link {measured_link} is more than the link carries",
            "give the link's rate by --link, and what an allreduce measured by --measured-link",
        )
    asked = Questions(setup, epochs or 90, dataset_size, Calibration(effective_bps=carried))
    if page:
        return _page(ui, page, asked)
    if hours:
        target = max(target or 0, asked.epochs * dataset_size / hours / 3600)
    several, tried = (
        links if link else questions.LINKS,
        sorted(counts) if nodes else questions.NODES,
    )
    compared = len(set(links)) > 1 and setup.nodes > 1 and target is None
    asks: list[tuple[object, Callable[[], Answer]]] = [
        (target is not None, lambda: asked.reach(target or 0.0, several, tried)),
        (compared, lambda: asked.compare_links({*links})),
        (hide_communication, asked.hide),
        (memory, lambda: asked.fit(_one("--memory", memory or "", _memory), optimizer)),
        (epochs, asked.cost),
    ]
    answers = [ask() for wanted, ask in asks if wanted]
    rows = [
        asked.row(link_bps=rate_of_link, batch=size, nodes=count)
        for rate_of_link, size, count in itertools.product(links, sizes, counts)
    ]
    told = {"rows": [row.document() for row in rows]}
    told["answers"] = [answer.document() for answer in answers]
    ui.document("predict", {"model": setup.model, "gpu": gpu, **told})
    ui.table(questions.COLUMNS, [row.cells for row in rows])
    ui.say(f"one-GPU rate: {rows[0].prediction.rate_source}")
    for line in itertools.chain.from_iterable(answer.lines() for answer in answers):
        ui.say(line)
    return 0


def _page(ui: UI, path: Path, asked: Questions) -> int:
    from gpubed.report import forecast_page  # loads the report's libraries

    if path.is_dir():
        raise UsageError(f"--page {path} is a folder", "name a file, such as nodes.html")
    own = () if asked.setup.shape else ("resnet50", "resnet101", "vgg16", "inception3")
    content = forecast_page.html(asked, own, rates.gpus())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_named(path, content.encode())
    except OSError as error:
        raise UsageError(f"--page {path} cannot be written: {error}", "name a file") from None
    ui.document("predict", {"page": str(path.absolute())})
    ui.say(f"page: {path.absolute()}", whole=True)
    return 0


def _history(ui: UI) -> int:
    from gpubed.report import residuals  # loads the report's libraries

    found, without = residuals.history(Project.find())
    told = {**residuals.summary(found), "without": without}
    ui.document("predict", {"rows": [one.document() for one in found], **told})
    columns = ("campaign", "point", "measured", "predicted", "low", "high", "difference", "")
    ui.table(
        columns,
        [
            (
                *(one.campaign, one.point),
                *map(questions.figure, (one.measured, one.predicted, one.low, one.high)),
                f"{one.difference:+.1%}",
                "in" if one.inside else "out",
            )
            for one in found
        ],
    )
    if without:
        ui.note(f"began without predictions: {', '.join(without)}")
    ui.say(residuals.words(found) or "no campaign of this controller was predicted yet")
    return 0


def _table(ui: UI, path: Path) -> int:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read: {error}", "give a CSV file in UTF-8") from None
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
    low, high = (int(each) if each.isdecimal() else 0 for each in (first, last if dash else first))
    if not 1 <= low <= high < 10_000 or high - low > 1000:
        raise ValueError("must be numbers from 1 to 9999 that count up, 1001 at most")
    return iter(range(low, high + 1))


def _listed(option: str, text: str, read: Callable[[Any], _T]) -> list[_T]:
    try:
        return [read(part.strip()) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"{option} {text!r}: {error}", _HINTS[read]) from None


def _one(option: str, text: str, read: Callable[[Any], _T]) -> _T:
    first, *others = _listed(option, text, read)
    if others:
        raise UsageError(f"{option} {text!r}: one value is expected", _HINTS[read])
    return first


def _link(text: str) -> int:
    if (rate := parse_rate(text)) < 1_000_000:
        raise ValueError("is below 1 Mbit/s; without a unit, it is bit/s")
    return rate


def _memory(text: str) -> int:
    if (size := parse_bytes(text)) < 10**8:
        raise ValueError("is below 100 MB; without a unit, it is bytes")
    return size


_HINTS: dict[Callable[[Any], Any], str] = {
    _range: "write 4, 1-10 or 1,2,4",
    _link: "write 10 Gbit/s",
    _memory: "write 16 GB",
}

"""gpubed predict."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable, Iterable, Iterator
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
    link: str = Option(
        "10 Gbit/s", "--link", "--links", help="Rate between nodes; several with commas."
    ),
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
    target: float | None = Option(
        None, "--target", help="Images/s: which nodes and link reach it at the least node-hours?"
    ),
    hide: bool = Option(False, "--hide-communication", help="Which batch does?"),
    memory: str | None = Option(
        None, "--memory", help="Does it fit a GPU of so much, such as 16 GB? Else how?"
    ),
    optimizer: str = Option("sgd", "--optimizer", help="For --memory: sgd, adam or adamw."),
    epochs: int | None = Option(
        None, "--epochs", min=1, help="How many hours and node-hours do they take?"
    ),
    dataset_size: int = Option(
        1_281_167, "--dataset-size", min=1, help="Images of an epoch, ImageNet's if left out."
    ),
    page: Path | None = Option(
        None, "--page", metavar="FILE", help="Write a page with sliders for all of these."
    ),
    history: bool = Option(
        False, "--history", help="How far predictions of all campaigns here were off."
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
    if history:
        return _history(ui)
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
    links = [float(one) for one in _listed("--link", link, parse_rate)]
    batches, counts = _numbers("--batch", batch), _numbers("--nodes", nodes)
    setup = replace(setup, nodes=max(counts), batch=batches[0], link_bps=links[0])
    asked = Questions(setup, epochs or 90, dataset_size, Calibration(effective_bps=measured))
    if page:
        return _page(ui, page, asked)
    several = links if len(links) > 1 else questions.LINKS
    asks: list[tuple[object, Callable[[], Answer]]] = [
        (target is not None, lambda: asked.reach(target or 0.0, several)),
        (len(links) > 1 and setup.nodes > 1 and target is None, lambda: asked.compare_links(links)),
        (hide, asked.hide),
        (memory, lambda: asked.fit(_listed("--memory", memory or "", parse_bytes)[0], optimizer)),
        (epochs, asked.cost),
    ]
    answers = [ask() for wanted, ask in asks if wanted]
    return _settings(ui, asked, itertools.product(links, batches, counts), answers)


def _settings(
    ui: UI, asked: Questions, of: Iterable[tuple[float, int, int]], answers: list[Answer]
) -> int:
    """Print predictions of links, batches and nodes, and answers."""
    if len(wanted := list(itertools.islice(of, _MOST + 1))) > _MOST:
        raise UsageError("these are too many rows", f"ask for {_MOST} at most")
    rows = [asked.row(link_bps=rate, batch=size, nodes=count) for rate, size, count in wanted]
    told: dict[str, Any] = {"model": asked.setup.model, "gpu": asked.setup.gpu}
    told |= {"rows": [row.document() for row in rows]}
    ui.document("predict", {**told, "answers": [answer.document() for answer in answers]})
    ui.table(questions.COLUMNS, [row.cells for row in rows])
    ui.say(f"one-GPU rate: {rows[0].prediction.rate_source}")
    for line in itertools.chain.from_iterable(answer.lines() for answer in answers):
        ui.say(line)
    return 0


def _page(ui: UI, path: Path, asked: Questions) -> int:
    from gpubed.report import forecast_page  # loads the report's libraries

    own = () if asked.setup.shape else ("resnet50", "resnet101", "vgg16", "inception3")
    content = forecast_page.html(asked, own, rates.gpus())
    files.write(path, content.encode())
    ui.document("predict", {"page": str(path.absolute())})
    ui.say(f"page: {path.absolute()}", whole=True)
    return 0


def _history(ui: UI) -> int:
    from gpubed.report import residuals  # loads the report's libraries

    found, left_out = residuals.history(Project.find())
    rows = [one.document() for one in found]
    ui.document("predict", {"rows": rows, **residuals.summary(found), "left_out": left_out})
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
    for line in left_out:
        ui.note(f"left out: {line}")
    ui.say(residuals.words(found) or "no campaign of this controller was predicted yet")
    return 0


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
        raise UsageError(
            f"{option} {text!r}: {error}", f"gpubed predict --help says {option}"
        ) from None

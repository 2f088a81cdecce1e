"""gpubed resources."""

from dataclasses import asdict

from typer import Option

from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.core.errors import UsageError
from gpubed.prediction import forecast
from gpubed.prediction.questions import Row, figure
from gpubed.spec.sections import Experiment
from gpubed.testbeds import registry
from gpubed.testbeds.specification import load_plan

EXAMPLE = "gpubed resources vw"
PLACE = ("Cluster", 20)


def command(
    name: ClusterName,
    for_: str | None = Option(
        None,
        "--for",
        metavar="MODEL[:BATCH]",
        help="Rank by the predicted rate of this training, else of cluster.yml's experiment.",
    ),
    as_json: Json = False,
) -> int:
    """Show what machines the testbed has, and how many are free now."""
    ui = UI(as_json)
    paths = find(name)
    plan = load_plan(paths.spec)
    offers = registry.bound(plan.backend, paths).resources(plan.spec)
    experiment = _experiment(for_) or plan.spec.experiment
    found = forecast.of_offers(plan, experiment, offers) if experiment else {}
    offers = sorted(offers, key=lambda offer: -_rate(found.get(offer.name)))
    rows = [(offer, found.get(offer.name)) for offer in offers]
    told = {"prediction": None}
    ui.document(
        "resources",
        {
            "offers": [
                asdict(o) | (told | {"prediction": row.document()} if row else told)
                for o, row in rows
            ]
        },
    )
    ui.table(
        ("machine", "free", "total", "GPUs", "GPU", *(["images/s (90 %)"] * bool(found)), "note"),
        [
            (
                offer.name,
                *("?" if n is None else n for n in (offer.free, offer.total, offer.gpus)),
                offer.gpu_model,
                *([_written(row)] * bool(found)),
                offer.note,
            )
            for offer, row in rows
        ],
    )
    if experiment and not found:
        ui.note("no rate is predicted: no free machine names a GPU with a known rate")
    return 0


def _experiment(given: str | None) -> Experiment | None:
    if given is None:
        return None
    model, _, batch = given.partition(":")
    if not model or not (batch or "32").isdecimal() or batch == "0":
        raise UsageError(f"--for {given!r} is no MODEL:BATCH", "--for resnet50:64")
    return Experiment(model=model, batch=int(batch or 32))


def _rate(row: Row | None) -> float:
    return row.prediction.images_per_s if row else 0.0


def _written(row: Row | None) -> str:
    if row is None:
        return ""
    low, high = figure(row.prediction.low), figure(row.prediction.high)
    return f"{figure(_rate(row))} on {row.setup.nodes} ({low} to {high})"

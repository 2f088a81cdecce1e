"""gpubed resources."""

from dataclasses import asdict

from typer import Option

from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.core.errors import UsageError
from gpubed.prediction import forecast
from gpubed.prediction.questions import Row
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
    experiment = _experiment(for_) if for_ else plan.spec.experiment
    found = forecast.of_offers(plan, experiment, offers) if experiment else {}
    offers.sort(key=lambda offer: -found[offer.name].rate if offer.name in found else 0)
    told = {name: row.document() for name, row in found.items()}
    documents = [{**asdict(one), "prediction": told.get(one.name)} for one in offers]
    ui.document("resources", {"offers": documents})
    counts = ((o, ("?" if n is None else n for n in (o.free, o.total, o.gpus))) for o in offers)
    rows = [(o.name, *each, o.gpu_model, o.note, _rate(found.get(o.name))) for o, each in counts]
    columns = ["machine", "free", "total", "GPUs", "GPU", "note"]
    if found:
        columns.append("images/s (90 %)")
    ui.table(columns, [row[: len(columns)] for row in rows])
    if experiment and not found:
        ui.note("no rate is predicted: no free machine has a GPU that the table of rates knows")
    return 0


def _experiment(given: str) -> Experiment:
    model, _, batch = given.partition(":")
    if not model or not (batch or "1").isdecimal() or batch.strip("0") == "" != batch:
        raise UsageError(f"--for {given!r} is not MODEL:BATCH", "--for resnet50:64")
    return Experiment(model=model, batch=int(batch or 32))


def _rate(row: Row | None) -> str:
    return f"{row.cells[1]} on {row.setup.nodes} ({row.cells[2]})" if row else ""

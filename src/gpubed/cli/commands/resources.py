"""gpubed resources."""

from dataclasses import asdict

from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.testbeds import registry
from gpubed.testbeds.specification import load_plan

EXAMPLE = "gpubed resources vw"
PLACE = ("Cluster", 20)


def command(name: ClusterName, as_json: Json = False) -> int:
    """Show the testbed's machines, and how many are free now."""
    ui, paths = UI(as_json), find(name)
    plan = load_plan(paths.spec)
    offers = registry.bound(plan.backend, paths).resources(plan.spec)
    ui.document("resources", {"offers": [asdict(offer) for offer in offers]})
    counts = ((o, ("?" if n is None else n for n in (o.free, o.total, o.gpus))) for o in offers)
    rows = [(o.name, *each, o.gpu_model, o.note) for o, each in counts]
    ui.table(("machine", "free", "total", "GPUs", "GPU", "note"), rows)
    return 0

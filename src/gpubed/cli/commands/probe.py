"""gpubed probe."""

from typer import Option

from gpubed.campaigns import probing
from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.cluster import lease
from gpubed.configuration import health, unfinished
from gpubed.core import runlock
from gpubed.jobs.metrics import formatted
from gpubed.nodes import link_rates
from gpubed.prediction import probed
from gpubed.testbeds.specification import load_cluster

EXAMPLE = "gpubed probe lab"
PLACE = ("Experiments", 16)
_ON_CPUS = "resnet18", 32  # what a CPU trains within a minute


def command(
    name: ClusterName,
    model: str | None = Option(
        None, help="Its rate is measured; by default experiment.model, or resnet18 on CPUs."
    ),
    batch: int | None = Option(None, min=1, help="Images per step."),
    image_size: int | None = Option(None, min=1, help="Side of the images; 32 pixels on CPUs."),
    as_json: Json = False,
) -> int:
    """Calibrate predictions: one rank's rate, two nodes' link.

    It takes less than two minutes. `plan`, `bench` and `rehearse` use what it finds.
    """
    ui, paths = UI(as_json), find(name)
    cluster = load_cluster(paths)
    unfinished.require_configured(cluster)
    unfinished.require_none(paths)
    lease.check_not_expired(paths)
    link_rates.require_declared(paths)
    experiment = cluster.plan.spec.experiment
    on_gpus = any(node.gpus for node in cluster.allocation.with_ranks)
    usual = experiment.model if experiment else "resnet50" if on_gpus else _ON_CPUS[0]
    size = image_size or (None if on_gpus else _ON_CPUS[1])
    training = {
        "model": model or usual,
        "batch_size": str(batch or (experiment.batch if experiment else 32)),
        **({"image_size": str(size)} if size else {}),
    }
    with (
        runlock.hold(paths.state, "probe"),
        runlock.measuring(paths.state, "probe"),
        ui.working("probe") as show,
    ):
        usable, left_out = health.usable(cluster)
        for node in left_out:
            ui.note(f"{node.node} is left out: {node.reason}")
        found = probing.probe(usable, training, show)
    ui.document("probe", {**found.model_dump(mode="json", exclude={"contract"})})
    if alone := found.alone:
        ui.say(
            f"one rank on {alone.device}: {alone.model}, batch {alone.batch}, images of "
            f"{alone.image_size} pixels: {formatted(alone.images_per_s, 'images/s')}"
        )
    for transport, way in found.ways.items():
        share = way.bus_bps / found.link_bps if found.link_bps else 0.0
        ui.say(
            f"two nodes by {transport}: {formatted(way.bus_bps, 'bit/s')}, {share:.0%} of "
            f"the declared rate; {formatted(way.step_s, 's')} for each step of an allreduce"
        )
    if not found.ways:
        ui.note("links were not measured: that takes two nodes and an experiment network")
    ui.say(f"kept in {paths.state / probed.FILE}")
    return 0

"""gpubed verify."""

from pathlib import Path

from typer import Option

from gpubed.checks.verify import VerificationFailed
from gpubed.cli import status_view
from gpubed.cli.display import Display
from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.cluster import setup
from gpubed.cluster.events import event_file
from gpubed.configuration import unfinished
from gpubed.core import runlock
from gpubed.hardware import report as gpu_report
from gpubed.testbeds.specification import load_cluster

EXAMPLE = "gpubed verify lab"
PLACE = ("Cluster", 70)


def command(
    name: ClusterName,
    report_to: Path | None = Option(
        None,
        "--gpu-report",
        metavar="FILE",
        help="First write all that a simulation of the GPUs can be recorded from, "
        "with no name, address or serial number in it.",
    ),
    as_json: Json = False,
) -> int:
    """Prove that the cluster is what its specification says."""
    ui, paths = UI(as_json), find(name)
    unfinished.require_still(paths)
    cluster = load_cluster(paths)
    unfinished.require_configured(cluster)
    if report_to:
        found = gpu_report.of_cluster(cluster)
        gpu_report.write(report_to, found)
        ui.say(gpu_report.described(found, report_to))
    display, way_on = Display(ui), ""
    interrupted = unfinished.state(paths) == unfinished.INTERRUPTED
    with (
        runlock.measuring(paths.state, "verify"),
        event_file(paths, "verify", None) as path,
        display.following(path),
    ):
        try:
            result = setup.verify_cluster(cluster)
        except VerificationFailed as failed:
            result, way_on = failed.verification, failed.hint or ""
    ui.document("verify", {"verification": result.summary()})
    status_view.verification(ui, result.summary(), whole=True)
    if interrupted:
        ui.mark(
            "fail",
            "the last configuration did not come to its end: nodes, links and what they are "
            "compared with may be of before and after",
        )
        way_on = f"gpubed up {name} goes on with it"
    if way_on:
        ui.note(f"→ {way_on}")
    return result.exit_code

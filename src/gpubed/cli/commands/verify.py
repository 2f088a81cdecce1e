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
        help="First write a report of the GPUs, from which a simulation can be made, "
        "without names, addresses and serial numbers.",
    ),
    as_json: Json = False,
) -> int:
    """Check that the cluster is as its specification says."""
    ui, paths = UI(as_json), find(name)
    unfinished.require_still(paths)
    cluster = load_cluster(paths)
    unfinished.require_configured(cluster)
    if report_to:
        found = gpu_report.of_cluster(cluster)
        gpu_report.write(report_to, found)
        ui.say(gpu_report.described(found, report_to))
    display, hint = Display(ui), ""
    interrupted = unfinished.state(paths) == unfinished.INTERRUPTED
    with (
        runlock.measuring(paths.state, "verify"),
        event_file(paths, "verify", None) as path,
        display.following(path),
    ):
        try:
            result = setup.verify_cluster(cluster)
        except VerificationFailed as failed:
            result, hint = failed.verification, failed.hint or ""
    ui.document("verify", {"verification": result.summary()})
    status_view.verification(ui, result.summary(), whole=True)
    if interrupted:
        ui.mark(
            "fail",
            "the last configuration did not come to its end: some nodes, links and limits may "
            "be the former ones",
        )
        hint = f"gpubed up {name} goes on with it"
    if hint:
        ui.note(f"→ {hint}")
    return result.exit_code

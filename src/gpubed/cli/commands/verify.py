"""gpubed verify."""

from gpubed import handover, lifecycle
from gpubed.allocation import load as load_allocation
from gpubed.cli import report
from gpubed.cli.display import Display
from gpubed.cli.options import Cluster, Json, find
from gpubed.cli.ui import UI
from gpubed.plan import from_file
from gpubed.verify import VerificationFailed

EXAMPLE = "gpubed verify lab"


def command(cluster: Cluster, as_json: Json = False) -> int:
    """Prove that the cluster is what its specification says."""
    ui, paths = UI(as_json), find(cluster)
    granted, wanted = load_allocation(paths.allocation), from_file(paths.spec)
    display = Display(ui)
    with lifecycle.event_file(paths, "verify", None) as path, display.following(path):
        try:
            result = handover.verify_cluster(paths, wanted, granted)
        except VerificationFailed as failed:
            result = failed.verification
    ui.document("verify", {"verification": result.summary()})
    report.verification(ui, result.summary(), whole=True)
    return result.exit_code

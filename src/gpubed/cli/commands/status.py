"""gpubed status."""

from gpubed import lifecycle, stack
from gpubed.cli import report
from gpubed.cli.options import Cluster, Json, find
from gpubed.cli.ui import UI

EXAMPLE = "gpubed status lab --json"


def command(cluster: Cluster, as_json: Json = False) -> int:
    """Show nodes, lease, services and the last verification."""
    ui = UI(as_json)
    document = lifecycle.status(find(cluster), stack.choose(None))
    ui.document("status", {**document, "phases": []})
    report.cluster(ui, cluster, document)
    return 0 if document["state"] == "ready" else 1

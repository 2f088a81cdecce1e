"""gpubed status."""

from typer import Option

from gpubed.cli import status_view
from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.cluster import status
from gpubed.core.errors import GpubedError
from gpubed.engines import stack
from gpubed.nodes.allocation import BeingMade, NotUp

EXAMPLE = "gpubed status lab --json"
PLACE = ("Cluster", 60)


def command(
    name: ClusterName,
    as_json: Json = False,
    verbose: bool = Option(
        False, "--verbose", "-v", help="List every check, even passed and skipped ones."
    ),
) -> int:
    """Show problems, nodes, use, lease, services and verification."""
    ui, paths, engine = UI(as_json), find(name, from_state=True), stack.choose(None)
    try:
        document = status.status(paths, engine, use=True)
    except NotUp as not_up:
        found = status.of_none(paths, engine)
        ui.document("status", {**found, "phases": []})
        if found["state"] != "allocated" or isinstance(not_up, BeingMade):
            raise
        raise GpubedError(
            f"cluster {name} is only in part made: the last run did not come to its end",
            f"gpubed up {name} goes on with it, gpubed down {name} removes what there is",
        ) from not_up
    ui.document("status", {**document, "phases": []})
    status_view.cluster(ui, name, document, whole=verbose)
    return 0 if document["state"] == "ready" else 1

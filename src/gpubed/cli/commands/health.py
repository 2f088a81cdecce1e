"""gpubed health."""

from typer import Option

from gpubed.cli import completion
from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.configuration import health
from gpubed.core.errors import UsageError
from gpubed.nodes.allocation import load

EXAMPLE = 'gpubed health lab --quarantine node-1 --reason "fan is loud"'
PLACE = ("Care", 30)


def command(
    name: ClusterName,
    quarantine: str | None = Option(
        None,
        "--quarantine",
        metavar="NODE",
        help="Let no job start on a node; needs a reason.",
        autocompletion=completion.nodes,
    ),
    requalify: str | None = Option(
        None,
        "--requalify",
        metavar="NODE",
        help="Use it again, if nothing is wrong any more.",
        autocompletion=completion.nodes,
    ),
    reason: str | None = Option(None, "--reason", help="Why, for whoever asks later."),
    as_json: Json = False,
) -> int:
    """Show which nodes are well, and take a node out of use or back."""
    if quarantine and requalify:
        raise UsageError("--quarantine and --requalify exclude each other")
    if quarantine and not reason:
        raise UsageError(
            "a quarantine needs a reason",
            f'gpubed health {name} --quarantine {quarantine} --reason "fan is loud"',
        )
    ui, paths = UI(as_json), find(name)
    allocation = load(paths.allocation)
    allocation.require_nodes()
    if quarantine:
        health.quarantine(paths, allocation, quarantine, reason or "")
    if requalify:
        health.requalify(paths, allocation, requalify)
    found = health.look(paths, allocation.nodes)
    told = [
        {"name": one.node, "state": one.state, **one.model_dump(exclude={"node", "reachable"})}
        for one in found
    ]
    ui.document("health", {"nodes": told})
    rows = ((n.node, n.state, n.quarantine.since if n.quarantine else "", n.reason) for n in found)
    ui.table(["node", "state", "since", "reason"], rows)
    if quarantine:
        # What was asked for is done; that the node is out of use is the point.
        return 0
    return 1 if any(node.state != "well" for node in found) else 0

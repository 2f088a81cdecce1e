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
        help="Let jobs use a node again, if its checks pass.",
        autocompletion=completion.nodes,
    ),
    reason: str | None = Option(None, "--reason", help="Why, as `health` and `status` show it."),
    as_json: Json = False,
) -> int:
    """Show which nodes are healthy; take one out of use, or back."""
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
    document = [
        {"name": n.node, "state": n.state, **n.model_dump(exclude={"node", "reachable"})}
        for n in found
    ]
    ui.document("health", {"nodes": document})
    rows = ((n.node, n.state, n.quarantine.since if n.quarantine else "", n.reason) for n in found)
    ui.table(["node", "state", "since", "reason"], rows)
    # A quarantine that the user asked for is a success.
    return 1 if not quarantine and any(node.state != "well" for node in found) else 0

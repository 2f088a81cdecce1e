"""gpubed render."""

from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.cluster import handover
from gpubed.nodes.allocation import load as load_allocation
from gpubed.nodes.cluster import Cluster
from gpubed.testbeds.specification import load_plan

EXAMPLE = "gpubed render lab && ansible-playbook -i inventories/lab playbooks/site.yml"
PLACE = ("Cluster", 120)


def command(name: ClusterName, as_json: Json = False) -> int:
    """Write inventory, variables, ssh_config and known_hosts alone."""
    ui, paths = UI(as_json), find(name)
    cluster = Cluster(paths, load_plan(paths.spec), load_allocation(paths.allocation))
    changed = handover.render(cluster)
    ui.document("render", {"changed": changed})
    for path in changed:
        ui.say(f"wrote {path}")
    if not changed:
        ui.say("everything is up to date")
    return 0

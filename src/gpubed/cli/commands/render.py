"""gpubed render."""

from gpubed.cli.options import Cluster, Json, find
from gpubed.cli.ui import UI
from gpubed.cluster import handover
from gpubed.nodes.allocation import load as load_allocation
from gpubed.testbeds.specification import load_plan

EXAMPLE = "gpubed render lab && ansible-playbook -i inventories/lab playbooks/site.yml"


def command(cluster: Cluster, as_json: Json = False) -> int:
    """Write inventory, variables, ssh_config and known_hosts; nothing else."""
    ui, paths = UI(as_json), find(cluster)
    changed = handover.render(paths, load_plan(paths.spec), load_allocation(paths.allocation))
    ui.document("render", {"changed": changed})
    for name in changed:
        ui.say(f"wrote {name}")
    if not changed:
        ui.say("everything is up to date")
    return 0

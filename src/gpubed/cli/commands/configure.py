"""gpubed configure."""

from contextlib import nullcontext

from typer import Option

from gpubed.cli import completion
from gpubed.cli.display import Display
from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.cluster import setup
from gpubed.cluster.events import event_file
from gpubed.configuration import (
    configure,
    jupyterlab_port,
    owners_variables,
    roles,
    shared_storage,
    unfinished,
)
from gpubed.core import record, runlock
from gpubed.core.errors import UsageError
from gpubed.core.text import nearest_name
from gpubed.nodes import allocation as allocations
from gpubed.nodes.allocation import Cluster
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.specification import load_cluster, load_plan

EXAMPLE = "gpubed configure lab --tags jupyterlab"
PLACE = ("Cluster", 80)


def command(
    name: ClusterName,
    tags: str = Option(
        "", help="Roles, separated by commas; all if empty.", autocompletion=completion.roles
    ),
    limit: str | None = Option(
        None, help="Nodes, as an Ansible pattern.", autocompletion=completion.several_nodes
    ),
    check: bool = Option(False, "--check", help="Show what would change, change nothing."),
    files_only: bool = Option(
        False, "--files-only", help="Write inventory, variables, ssh_config and known_hosts alone."
    ),
    as_json: Json = False,
) -> int:
    """Apply the roles to the nodes again, changed or not."""
    ui, paths = UI(as_json), find(name)
    if files_only:
        if tags or limit or check:
            raise UsageError("--files-only goes with no other option")
        cluster = Cluster(paths, load_plan(paths.spec), allocations.load(paths.allocation))
        written = setup.render(cluster)
        ui.document("configure", {"files": written})
        ui.say("\n".join(f"wrote {path}" for path in written) or "everything is up to date")
        return 0
    cluster = load_cluster(paths)
    plan, allocation = cluster.plan, cluster.allocation
    allocation.require_nodes()
    owners_variables.require_readable(paths)
    display = Display(ui)
    chosen = _roles(tags, plan)
    with (
        event_file(paths, "configure", None) as path,
        display.following(path),
        runlock.hold(paths.state, "configure --check" if check else "configure"),
    ):
        shared_storage.require_same(paths, plan)
        setup.render(cluster)
        if limit:
            configure.limited(paths, limit)
        # Only `up` completes changes of nodes and links, which roles do not make.
        up_unfinished = record.read(paths).unfinished == "nodes"
        whole = not (chosen or limit or up_unfinished)
        with nullcontext() if check else unfinished.noted(paths, whole=whole):
            outcome = configure.configure(paths, tags=chosen, limit=limit, check=check)
            if not check and shared_storage.ROLE in (chosen or roles.active(plan)):
                shared_storage.remember(cluster)
            if not check and not jupyterlab_port.is_due(cluster):
                jupyterlab_port.remember(cluster)
    if up_unfinished:
        ui.note(f"the last up did not come to its end: gpubed up {name} goes on with it")
    phases = [{"name": phase, "seconds": took} for phase, took in outcome.phases.items()]
    changed = outcome.changed
    counts = {node.name: changed[node.name] for node in allocation.nodes if node.name in changed}
    ui.document("configure", {"changed": counts, "phases": phases, "log": str(outcome.log)})
    for node, count in counts.items():
        ui.say(f"{node}: {count} task(s) changed")
    return 0


def _roles(tags: str, plan: ClusterPlan) -> list[str]:
    """Return the named roles; Ansible would run nothing for an unknown one."""
    active, chosen = roles.active(plan), [tag.strip() for tag in tags.split(",") if tag.strip()]
    for name in chosen:
        if name not in active:
            raise UsageError(
                f"cluster {plan.cluster} has no role {name!r}", nearest_name(name, active)
            )
    return chosen

"""gpubed down."""

from gpubed import lifecycle, stack
from gpubed.cli.display import Display
from gpubed.cli.options import Cluster, EngineOption, Json, Yes, find
from gpubed.cli.ui import UI
from gpubed.errors import UsageError

EXAMPLE = "gpubed down lab -y"


def command(
    cluster: Cluster, as_json: Json = False, yes: Yes = False, engine: EngineOption = None
) -> int:
    """Remove the cluster and everything that carries its id; results of jobs stay."""
    ui, paths = UI(as_json), find(cluster)
    if not ui.confirm(f"Remove cluster {cluster} and all its nodes?", yes=yes, default=False):
        raise UsageError("not confirmed, so nothing was removed", f"gpubed down {cluster} -y")
    display = Display(ui)
    # The log must survive the folder that `down` removes.
    with lifecycle.event_file(
        paths, "down", paths.project.pulumi / f"down-{cluster}.jsonl"
    ) as path:
        with display.following(path):
            removal = lifecycle.down(paths, stack.choose(engine))
        path.unlink(missing_ok=True)
    ui.document("down", {"removed": removal.removed, "survivors": removal.survivors})
    for name in removal.removed:
        ui.say(f"removed {name}")
    for name in removal.survivors:
        ui.say(f"STILL THERE: {name}")
    if not removal.removed:
        ui.say("there was nothing to remove")
    return 1 if removal.survivors else 0

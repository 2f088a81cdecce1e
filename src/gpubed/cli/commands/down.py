"""gpubed down."""

from typing import Annotated

import typer

from gpubed import lifecycle, stack
from gpubed.cli import report
from gpubed.cli.display import Display
from gpubed.cli.options import Cluster, EngineOption, Json, Yes, find
from gpubed.cli.ui import UI
from gpubed.errors import UsageError

EXAMPLE = "gpubed down lab -y"


KeepData = Annotated[
    bool,
    typer.Option(
        "--keep-data", help="Keep volumes; on this machine the next `up` takes them over."
    ),
]


def command(
    cluster: Cluster,
    keep_data: KeepData = False,
    as_json: Json = False,
    yes: Yes = False,
    engine: EngineOption = None,
) -> int:
    """Remove the cluster and everything that carries its id; results of jobs stay."""
    ui, paths = UI(as_json), find(cluster)
    chosen = stack.choose(engine)
    if keep_data and not lifecycle.data_of(paths, chosen):
        raise UsageError(
            "there is no volume to keep: what was written is on the nodes' own disks",
            f"copy it first, then gpubed down {cluster}",
        )
    server = lifecycle.shared_disk(paths)
    lost = f", and the shared storage, which is on the disk of {server}" if server else ""
    questions = [f"Remove cluster {cluster} and all its nodes{lost}?"]
    if not (keep_data or yes):
        found = lifecycle.data_of(paths, chosen)
        questions += [f"Remove its data, too: {report.described(volume)}?" for volume in found]
    for question in questions:
        if not ui.confirm(question, yes=yes, default=False):
            keeping = f"gpubed down {cluster} --keep-data -y"
            all_of_it = f", or with its data: gpubed down {cluster} -y"
            raise UsageError(
                f"not confirmed, so nothing was removed: {' '.join(questions)}",
                keeping + ("" if keep_data else all_of_it),
            )
    display = Display(ui)
    # The log must survive the folder that `down` removes.
    with lifecycle.event_file(
        paths, "down", paths.project.pulumi / f"down-{cluster}.jsonl"
    ) as path:
        with display.following(path):
            removal = lifecycle.down(paths, chosen, keep_data=keep_data)
        path.unlink(missing_ok=True)
    ui.document(
        "down",
        {"removed": removal.removed, "kept": removal.kept, "survivors": removal.survivors},
    )
    for name in removal.removed:
        ui.say(f"removed {name}")
    for name in removal.kept:
        ui.say(f"kept {name}")
    for name in removal.survivors:
        ui.say(f"STILL THERE: {name}")
    if not (removal.removed or removal.others):
        ui.say("there was nothing to remove")
    return _others(ui, cluster, removal) or (1 if removal.survivors else 0)


def _others(ui: UI, cluster: str, removal: lifecycle.Removal) -> int:
    """Tell of another cluster of the name; it may be this one, whose state was lost."""
    for uuid in sorted({thing.uuid for thing in removal.others}):
        listed = ", ".join(str(thing) for thing in removal.others if thing.uuid == uuid)
        ui.mark("skip", f"another {cluster} was left alone (uuid {uuid}): {listed}")
        ui.note(f"if its state was lost: gpubed audit {cluster} --adopt --uuid {uuid}", whole=True)
        ui.note(f"if nobody needs it: gpubed audit {cluster} --remove --uuid {uuid}", whole=True)
    return 1 if removal.others and not removal.removed else 0

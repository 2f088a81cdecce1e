"""gpubed down."""

from typer import Option

from gpubed.cli import status_view
from gpubed.cli.display import Display
from gpubed.cli.options import ClusterName, EngineOption, Json, Yes, find
from gpubed.cli.ui import UI
from gpubed.cluster import down
from gpubed.cluster.events import event_file
from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.engines import stack
from gpubed.jobs.runs import record

EXAMPLE = "gpubed down lab -y"
PLACE = ("Cluster", 90)


def command(
    name: ClusterName,
    keep_data: bool = Option(
        False, "--keep-data", help="Keep volumes; on this machine the next `up` takes them over."
    ),
    without: list[str] | None = Option(
        None,
        "--without",
        metavar="HOST",
        help="Skip an own host that cannot be reached, by its node or address; repeatable.",
    ),
    as_json: Json = False,
    yes: Yes = False,
    engine: EngineOption = None,
) -> int:
    """Remove the cluster and all resources with its id; results stay."""
    ui, paths = UI(as_json), find(name, from_state=True)
    chosen = stack.choose(engine)
    if keep_data and not down.data_of(paths, chosen):
        raise down.without_data(paths, chosen)
    server = down.shared_disk(paths)
    lost = f", and the shared storage, which is on the disk of {server}" if server else ""
    running = [run.run_id for run in record.every(paths)[0].values() if run.state == "running"]
    ends = f" Ends the runs at work there: {', '.join(running)}." if running else ""
    if running and yes:
        ui.note(f"ends the runs at work: {', '.join(running)}")
    questions = [f"Remove cluster {name} and all its nodes{lost}?{ends}"]
    if not (keep_data or yes):
        found = [status_view.described(volume) for volume in down.data_of(paths, chosen)]
        questions += [f"Remove its data, too: {volume}?" for volume in found]
        for volume in found:  # before the first question, which is about the nodes
            ui.note(f"its data is on {volume}")
    for question in questions:
        if not ui.confirm(question, yes=yes):
            keeping = f"gpubed down {name} --keep-data -y"
            all_of_it = f", or with its data: gpubed down {name} -y"
            raise UsageError(
                f"not confirmed, so nothing was removed: {' '.join(questions)}",
                keeping + ("" if keep_data else all_of_it),
            )
    display = Display(ui)
    # Outside the cluster's folder, which `down` removes.
    with event_file(paths, "down", paths.project.pulumi / f"down-{name}.jsonl") as path:
        with display.following(path):
            removal = down.down(paths, chosen, keep_data=keep_data, without=without or ())
        path.unlink(missing_ok=True)
    keys = ("removed", "kept", "survivors", "unseen", "without")
    unasked = {"unasked": list(map(str, removal.unasked))}
    ui.document("down", {**{key: getattr(removal, key) for key in keys}, **unasked})
    _show(ui, paths, removal)
    left = removal.survivors or removal.unseen or removal.unasked
    return _show_others(ui, name, removal) or (1 if left else 0)


def _show(ui: UI, paths: ClusterPaths, removal: down.Removal) -> None:
    if removal.removed:
        ui.say(f"removed {len(removal.removed)} resources")
    for label, names in (
        ("kept", removal.kept),
        ("STILL THERE:", removal.survivors),
        ("COULD NOT BE LOOKED AT, and may be a node still:", removal.unseen),
        ("COULD NOT BE ASKED, and may have something of it still:", removal.unasked),
        ("left as it is:", removal.without),
    ):
        for name in names:
            ui.say(f"{label} {name}")
    if removal.unseen or removal.unasked:
        ui.note(f"so the cluster's id and key stay; once it answers: gpubed down {paths.name}")
    if removal.unseen:
        hosts = " ".join(f"--without {why.split()[0]}" for why in removal.unseen)
        ui.note(f"if it never will: gpubed down {paths.name} {hosts}", whole=True)
    for testbed in removal.unasked:
        ui.note(f"if nothing of it is there: {testbed.forget}, and again", whole=True)
    if not (removal.removed or removal.others or removal.unseen or removal.unasked):
        ui.say("there was nothing to remove")


def _show_others(ui: UI, cluster: str, removal: down.Removal) -> int:
    """Show other clusters of the same name; one may be this cluster, if its state was lost."""
    for uuid in sorted({thing.uuid for thing in removal.others}):
        its = [thing for thing in removal.others if thing.uuid == uuid]
        listed = ", ".join(map(str, its))
        ui.mark("skip", f"another {cluster} was left alone (uuid {uuid}): {listed}")
        ui.note(f"if its state was lost: gpubed audit {cluster} --adopt --uuid {uuid}", whole=True)
        ui.note(f"if nobody needs it: {status_view.remove_command(cluster, its)}", whole=True)
    return 1 if removal.others and not removal.removed else 0

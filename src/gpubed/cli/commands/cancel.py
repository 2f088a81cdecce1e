"""gpubed cancel."""

from typer import Argument

from gpubed.cli import completion
from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.jobs.runs import active, checkpoints, record
from gpubed.jobs.runs.record import Record

EXAMPLE = "gpubed cancel lab 20261123-170512345"
PLACE = ("Work", 40)


def command(
    name: ClusterName,
    run: str | None = Argument(
        None,
        metavar="[RUN]",
        help="Its name, the beginning of its name, or `last`; by default the run at work.",
        autocompletion=completion.runs,
    ),
    as_json: Json = False,
) -> int:
    """End a run on all nodes, as Ctrl-C does in its terminal. What it wrote so far stays."""
    ui, paths = UI(as_json), find(name, from_state=True)
    found, training = _named(paths, run)
    if found is None and not training:
        ui.document("cancel", {"run_id": None, "status": None})
        ui.say(f"no run of {paths.name} is at work")
        return 0
    label = found.run_id if found else f"training {training}"
    with ui.working(f"{label} is ended"):
        if training:
            active.end_training(paths, training)
        elif found and found.state == "running":
            active.end(paths, found.run_id)
    ended = record.read(paths.runs / found.run_id) if found else None
    # The last run of a training that waits for nodes has failed.
    status = ended.state if ended and not (training and ended.state == "failed") else "interrupted"
    ui.document("cancel", {"run_id": ended and ended.run_id, "status": status})
    already = bool(found and found.state != "running" and not training)
    ui.say(f"{label}: {status}" + (" already" if already else ""))
    return 0


def _named(paths: ClusterPaths, run: str | None) -> tuple[Record | None, str]:
    """Return the run to end, if any, and the folder of the elastic training it belongs to, if any.

    Any run of a training stands for the whole; its last run is returned.

    Raises:
        UsageError: Several runs are at work and none was named, or there is no such run.
    """
    if run:
        found = record.find(paths, run)
        training = active.training_of(paths, found)
        return (active.parts(paths, training)[-1], training) if training else (found, "")
    trainings = [*checkpoints.trainings(paths)]
    running = [each for each in record.every(paths)[0].values() if each.state == "running"]
    alone = [each for each in running if not active.training_of(paths, each)]
    if len(alone) + len(trainings) > 1:
        names = ", ".join([*(each.run_id for each in alone), *trainings])
        raise UsageError(
            f"{len(alone) + len(trainings)} runs are at work: {names}",
            f"gpubed cancel {paths.name} RUN",
        )
    if trainings:
        return next(reversed(active.parts(paths, trainings[0])), None), trainings[0]
    return (alone[0], "") if alone else (None, "")

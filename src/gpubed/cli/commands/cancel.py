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
        help="Its name, the beginning of one, or `last`; the one at work if left out.",
        autocompletion=completion.runs,
    ),
    as_json: Json = False,
) -> int:
    """End a run on all nodes; what it wrote so far stays. Ctrl-C does so where it was started."""
    ui, paths = UI(as_json), find(name, from_state=True)
    meant, training = _meant(paths, run)
    if meant is None and not training:
        ui.document("cancel", {"run_id": None, "status": None})
        ui.say(f"no run of {paths.name} is at work")
        return 0
    called = meant.run_id if meant else f"training {training}"
    with ui.working(f"{called} is ended"):
        if training:
            active.end_training(paths, training)
        elif meant and meant.state == "running":
            active.end(paths, meant.run_id)
    ended = record.read(paths.runs / meant.run_id) if meant else None
    # A training that waited for nodes had no run at work.
    status = ended.state if ended and not (training and ended.state == "failed") else "interrupted"
    ui.document("cancel", {"run_id": ended and ended.run_id, "status": status})
    already = bool(meant and meant.state != "running" and not training)
    ui.say(f"{called}: {status}" + (" already" if already else ""))
    return 0


def _meant(paths: ClusterPaths, run: str | None) -> tuple[Record | None, str]:
    """Return the run that is meant, if one is, and the training that it is a part of, if it is.

    Of a training, any part stands for the whole: meant is its last one.

    Raises:
        UsageError: Several are at work, and none was named; or there is no such run.
    """
    if run:
        found = record.find(paths, run)
        training = active.training_of(paths, found)
        return (active.parts(paths, training)[-1], training) if training else (found, "")
    trainings = [*checkpoints.trainings(paths)]
    running = [one for one in record.every(paths)[0].values() if one.state == "running"]
    alone = [one for one in running if not active.training_of(paths, one)]
    if len(alone) + len(trainings) > 1:
        names = ", ".join([*(one.run_id for one in alone), *trainings])
        raise UsageError(
            f"{len(alone) + len(trainings)} runs are at work: {names}",
            f"gpubed cancel {paths.name} RUN",
        )
    if trainings:
        return next(reversed(active.parts(paths, trainings[0])), None), trainings[0]
    return (alone[0], "") if alone else (None, "")

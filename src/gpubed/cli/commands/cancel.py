"""gpubed cancel."""

from typing import Annotated

import typer

from gpubed.cli import completion
from gpubed.cli.options import Cluster, Json, find
from gpubed.cli.ui import UI
from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.jobs.runs import at_work, record
from gpubed.jobs.runs.record import Record

EXAMPLE = "gpubed cancel lab 20261123-170512345"


def command(
    cluster: Cluster,
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN]",
            help="Its name, the beginning of one, or `last`; the one at work if left out.",
            autocompletion=completion.runs,
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """End a run on all nodes, as Ctrl-C does where it was started; what it wrote so far stays."""
    ui, paths = UI(as_json), find(cluster, from_state=True)
    meant = record.find(paths, run) if run else _at_work(paths)
    if meant is None:
        ui.document("cancel", {"run_id": None, "status": None})
        ui.say(f"no run of {paths.name} is at work")
        return 0
    if meant.state == "running":
        with ui.working(f"{meant.run_id} is ended"):
            ended = at_work.end(paths, meant.run_id)
    else:
        ended = meant
    ui.document("cancel", {"run_id": ended.run_id, "status": ended.state})
    ui.say(f"{ended.run_id}: {ended.state}" + ("" if ended is not meant else " already"))
    return 0


def _at_work(paths: ClusterPaths) -> Record | None:
    """Return the run that is at work, if one is.

    Raises:
        UsageError: Several are.
    """
    found = [one for one in record.every(paths)[0].values() if one.state == "running"]
    if len(found) > 1:
        names = ", ".join(one.run_id for one in found)
        raise UsageError(
            f"{len(found)} runs are at work: {names}", f"gpubed cancel {paths.name} RUN"
        )
    return found[0] if found else None

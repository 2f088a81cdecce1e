"""gpubed run."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from gpubed import figures, health, jobfile, jobs, unfinished
from gpubed.allocation import load as load_allocation
from gpubed.cli import completion
from gpubed.cli.options import Cluster, Json, find
from gpubed.cli.ui import UI
from gpubed.job_progress import Estimate
from gpubed.jobfile import Metric
from gpubed.plan import from_file
from gpubed.trials import Summary

EXAMPLE = "gpubed run lab digits --set epochs=20"


def command(
    cluster: Cluster,
    job: Annotated[str, typer.Argument(help="A folder of jobs/.", autocompletion=completion.jobs)],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="An argument of the job.",
            autocompletion=completion.settings,
        ),
    ] = None,
    container: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="Run the ranks in containers of this image."),
    ] = None,
    launcher: Annotated[
        str | None,
        typer.Option(
            help="ssh: at once; slurm: in the queue; gpulab: there. What fits if left out.",
            autocompletion=completion.launchers,
        ),
    ] = None,
    as_json: Json = False,
) -> int:
    """Run a job over all nodes that are well and bring its results back."""
    ui, paths = UI(as_json), find(cluster)
    given = jobfile.parse_settings(settings or [])
    jobfile.load(job).values(job, given)  # what is wrong with them is said before anything starts
    granted, wanted = load_allocation(paths.allocation), from_file(paths.spec)
    unfinished.require_none(paths)
    usable, left_out = health.usable(paths, wanted, granted)
    for node in left_out:
        ui.mark("skip", f"{node.node} is left out: {node.reason}")
    with ui.working(f"{job} starts") as show:
        output = _telling(ui, show)
        result = jobs.run(paths, wanted, usable, job, given, output, container, launcher)
    for name, reason in result.left_out.items():
        ui.mark("skip", f"{name} is left out: {reason}")
    reasons = {node.node: node.reason for node in left_out} | result.left_out
    ui.document("run", {**result.document(), "left_out": reasons})
    ui.say(f"{job}: {result.status}, {_size(result)}")
    _tell_figures(ui, result)
    if result.simulated:
        models = ", ".join(result.simulated)
        ui.say(f"simulated: {models} did not compute, the CPU did; these are no figures of a GPU")
    if result.not_judged:
        ui.say(f"not judged in so small a run: {', '.join(result.not_judged)}")
    ui.say(f"results: {result.run_dir}")
    for reason in result.failures:
        ui.error(reason)
    return 0 if result.status == "ok" else 1


def _telling(ui: UI, show: Callable[[str], None]) -> Callable[[str], None]:
    """Return what takes the lines of a job: progress replaces itself, the rest scrolls by."""
    estimate = Estimate()

    def tell(line: str) -> None:
        progress = estimate.read(line)
        ui.note(line, whole=True) if progress is None else show(progress)

    return tell


def _tell_figures(ui: UI, result: jobs.JobResult) -> None:
    unknown = Metric(unit="")
    for name, value in (result.statistics or result.metrics).items():
        metric = result.described.get(name, unknown)
        if isinstance(value, Summary):
            ui.say(f"  {name} = {figures.summarized(value, metric.unit)}")
        elif isinstance(value, int | float | str):
            ui.say(f"  {name} = {figures.written(value, metric.unit)}")
    for name, rows in result.metrics.items():
        columns = result.described.get(name, unknown).columns
        if columns and isinstance(rows, list) and rows:
            ui.say(f"{name}:")
            ui.table(
                [_heading(column) for column in columns],
                [[_cell(row, *column) for column in columns.items()] for row in rows],
            )


def _heading(column: str) -> str:
    return column.removesuffix("_bps").removesuffix("_s").replace("_", " ")


def _cell(row: Any, key: str, unit: str) -> str:
    value = row.get(key) if isinstance(row, dict) else None
    return figures.written(value, unit) if isinstance(value, int | float | str) else ""


def _size(result: jobs.JobResult) -> str:
    if not result.trials:
        return f"world size {result.world_size}"
    done = sum(trial.status == "ok" for trial in result.trials)
    return f"{done} of {len(result.trials)} trials of world size {result.world_size} each"

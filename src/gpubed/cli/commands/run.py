"""gpubed run."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from gpubed.cli import background, completion
from gpubed.cli.job_output import JobOutput
from gpubed.cli.options import ClusterName, Json, find
from gpubed.cli.ui import UI
from gpubed.cluster import lease
from gpubed.configuration import health, unfinished
from gpubed.core import command_words, runlock
from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.core.units import duration
from gpubed.engines import interruption
from gpubed.jobs import checkpoint_files, execution, figures, jobfile, trials
from gpubed.jobs import elastic as training
from gpubed.jobs.elastic import Bounds
from gpubed.jobs.jobfile import Metric
from gpubed.jobs.runs import at_work, checkpoints, compare, record
from gpubed.jobs.runs.record import Choice, Record, Request
from gpubed.jobs.trials import Summary
from gpubed.nodes import rates, selection
from gpubed.nodes.cluster import Cluster
from gpubed.testbeds.specification import load_cluster

EXAMPLE = "gpubed run lab digits --nodes 2 --repeat 3 --set epochs=20"
_DETACH = ("--detach", "-d")
_LOOK_EVERY_S = 0.1
_WAITS_S = 10.0  # a training that has begun nothing by then waits for nodes
# What a record has that nothing can be said of before a run starts.
_OF_ITS_END = (
    *("status", "seconds", "failures", "metrics", "devices"),
    *("started", "set", "repetition", "again", "resumes"),
)


def command(
    name: ClusterName,
    job: Annotated[
        str | None, typer.Argument(help="A folder of jobs/.", autocompletion=completion.jobs)
    ] = None,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- --NAME VALUE …]", help="Arguments of the job, as it has them."),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="An argument of the job.",
            autocompletion=completion.settings,
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(metavar="N", help="Use the first N nodes only.")
    ] = None,
    ranks: Annotated[
        int | None, typer.Option(metavar="N", help="Start N ranks, node after node.")
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="NODE,NODE",
            help="Use these nodes only.",
            autocompletion=completion.several_nodes,
        ),
    ] = None,
    repeat: Annotated[
        int, typer.Option(metavar="K", min=1, help="Run it K times, one after the other.")
    ] = 1,
    again: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Repeat a run: ask for what it was asked for.",
            autocompletion=completion.runs,
        ),
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="RUN",
            help="Go on from the checkpoint of a run; on other nodes, too.",
            autocompletion=completion.resumable,
        ),
    ] = None,
    elastic: Annotated[
        bool,
        typer.Option(
            "--elastic",
            help="Outlive nodes: go on from the last checkpoint on those that are well.",
        ),
    ] = False,
    least: Annotated[
        int, typer.Option("--min", metavar="N", help="With --elastic: wait for N nodes at least.")
    ] = 1,
    most: Annotated[
        int | None, typer.Option("--max", metavar="N", help="With --elastic: N nodes at most.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would start, and where; start nothing.")
    ] = False,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", "-d", help="Go on in the background, as long as this machine is on."
        ),
    ] = False,
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
    """Run a job over the nodes that are well and bring its results back."""
    ui, paths = UI(as_json), find(name)
    bounds = Bounds(least, most) if elastic else None
    fixes = (nodes is not None, ranks is not None, on, again, repeat > 1)
    _check_bounds(bounds, least, most, fixed=any(fixes))
    asked = (words, settings, nodes, ranks, on, container, launcher)
    former = _former(paths, job, again, given=any((*asked, resume)))
    chosen = _named(on, words or ())
    given = {**jobfile.parse_settings(settings or []), **jobfile.parse_words(words or [])}
    resumed = _resumed(paths, job, resume, given)
    choice = Choice(nodes=nodes, ranks=ranks, on=chosen)
    request = former.request if former else _request(paths, job, resumed, given)
    if not former:
        request = _placed(request, choice, container, launcher)
    _check_arguments(request, repeat)
    _check_elastic(paths, request, bounds)
    interruption.then(f"gpubed runs {paths.name} show last   tells how far it came")
    if bounds and not dry_run:
        go_on = _detach_training if detach else _elastic
        return go_on(ui, paths, request, bounds, resumed)
    usable, reasons = _usable(ui, paths)
    if bounds:
        request = request.model_copy(update={"choice": training.first(bounds, usable)})
    # What cannot begin is refused before anything says that it starts.
    foreseen = execution.foresee(usable, request)
    if resumed:
        _require_checkpoint(usable, resumed, foreseen, elastic=bounds is not None)
    if former:
        _tell_differences(ui, former, foreseen)
    if dry_run:
        return _show(ui, foreseen, repeat, reasons)
    if detach:
        return _detach(ui, paths)
    set_ = execution.name_run(request.job) if repeat > 1 else ""
    ran = former.run_id if former else ""
    results = list[execution.JobResult]()
    sharing = runlock.measuring(paths.state, "run", shared=True)
    with sharing, _starting(ui, request, usable) as show:
        for number in range(repeat):
            if repeat > 1:
                ui.note(f"run {number + 1} of {repeat}")
            output = JobOutput(ui, show, _log(paths))
            results.append(
                execution.run(
                    usable,
                    request,
                    output.tell,
                    execution.Terms(
                        set_=set_,
                        repetition=number if repeat > 1 else None,
                        again=ran,
                        resumes=resumed.run_id if resumed else "",
                    ),
                )
            )
    result = execution.repeated(results) if repeat > 1 else results[0]
    return _conclude(ui, request.job, result, output, reasons)


@contextmanager
def _starting(ui: UI, request: Request, usable: Cluster) -> Iterator[Callable[[str], None]]:
    """Say that a job starts, and where."""
    chosen = selection.choose(usable.allocation, **request.choice.model_dump()).with_ranks
    text = execution.beginning(request.job, chosen)
    if not ui.err.is_terminal:  # there, it stands until the first step is done
        ui.note(text)
    with ui.working(text) as show:
        yield show


def _named(on: str | None, words: Sequence[str]) -> tuple[str, ...]:
    if on is None:
        return ()
    # The shell makes two words of it, and the second seems to be the job's.
    if words and (on.endswith(",") or words[0].startswith(",")):
        whole = ",".join(part.strip(",") for part in (on, words[0]))
        raise UsageError(f"there is a space in --on, before {words[0]!r}", f"--on {whole}")
    if not (names := [name for name in on.split(",") if name]):
        raise UsageError("--on names no node", "--on node-0,node-2")
    return tuple(names)


def _usable(ui: UI, paths: ClusterPaths) -> tuple[Cluster, dict[str, str]]:
    """Return the cluster with the nodes that a run may use, and why others are left out.

    Raises:
        GpubedError: The cluster is not ready.
    """
    cluster = load_cluster(paths)
    unfinished.require_configured(cluster)
    unfinished.require_none(paths)
    lease.check_not_expired(paths)
    rates.require_declared(paths)
    usable, left_out = health.usable(cluster)
    for node in left_out:
        ui.mark("skip", f"{node.node} is left out: {node.reason}")
    return usable, {node.node: node.reason for node in left_out}


def _check_bounds(bounds: Bounds | None, least: int, most: int | None, *, fixed: bool) -> None:
    """Say what is wrong with what was said of the number of nodes.

    Raises:
        UsageError: Bounds without --elastic, none between them, or what fixes the nodes beside it.
    """
    if bounds is None:
        if least != 1 or most is not None:
            raise UsageError("--min and --max are bounds of --elastic", "add --elastic")
        return
    training.require_bounds(bounds)
    if fixed:
        raise UsageError(
            "--elastic chooses the nodes itself, again and again; "
            "--nodes, --ranks, --on, --again and --repeat do not go with it",
            "--elastic --max N takes N nodes at most",
        )


def _check_elastic(paths: ClusterPaths, request: Request, bounds: Bounds | None) -> None:
    if bounds:
        training.require_elastic(paths, request)


def _elastic(
    ui: UI, paths: ClusterPaths, request: Request, bounds: Bounds, resumed: Record | None
) -> int:
    """Run a training that outlives its nodes, and say of each of its runs how it went."""
    with ui.working(f"{request.job} starts") as show:
        output = JobOutput(ui, show, _log(paths))
        whole = training.Training(
            paths,
            request,
            bounds,
            lambda what: ui.mark("update", what),
            output.tell,
            resumes=resumed.run_id if resumed else "",
        )
        try:
            result = whole.run()
        except KeyboardInterrupt:
            if whole.run_id:
                again = f"gpubed run {paths.name} --elastic --resume {whole.run_id}"
                interruption.then(f"{again}   goes on with it")
            raise
    if len(whole.legs) > 1:
        rows = [(leg.run_id, ",".join(leg.nodes), leg.why or leg.status) for leg in whole.legs]
        ui.table(["run", "nodes", "its end"], rows)
        ui.say(f"{len(whole.legs)} runs in {duration(whole.seconds)}; what follows is of the last")
    parts = [asdict(leg) for leg in whole.legs]
    more = {"legs": parts, "total_seconds": round(whole.seconds, 2)}
    return _conclude(ui, request.job, result, output, {}, **more)


def _detach(ui: UI, paths: ClusterPaths) -> int:
    """Start the same command again, in the background, and say which run it is."""
    since, process = execution.name_run(""), _again(paths)
    while not (begun := at_work.of_process(paths, process.id, since)):
        if (code := process.ended()) is not None:
            return _ended_early(ui, process, code)
        time.sleep(_LOOK_EVERY_S)
    return _tell_begun(ui, paths, process, begun)


def _detach_training(
    ui: UI, paths: ClusterPaths, _request: Request, _bounds: Bounds, _resumed: Record | None
) -> int:
    """Start the same command again; a training that waits for nodes has no run to tell of yet."""
    since, process, until = execution.name_run(""), _again(paths), math.inf
    while time.monotonic() < until:
        if begun := at_work.of_process(paths, process.id, since):
            return _tell_begun(ui, paths, process, begun)
        if (code := process.ended()) is not None:
            return _ended_early(ui, process, code)
        if until == math.inf and _has_training(paths, process.id):
            until = time.monotonic() + _WAITS_S
        time.sleep(_LOOK_EVERY_S)
    return _tell_waiting(ui, paths, process)


def _again(paths: ClusterPaths) -> background.Started:
    return background.start(background.without(sys.argv[1:], _DETACH), _log(paths))


def _log(paths: ClusterPaths) -> Path:
    """Return where what a run in the background says of itself is added."""
    return paths.logs / "run.log"


def _ended_early(ui: UI, process: background.Started, code: int) -> int:
    ui.note(process.said(), whole=True)
    return code


def _tell_begun(ui: UI, paths: ClusterPaths, process: background.Started, begun: Record) -> int:
    folder = str(paths.runs / begun.run_id)
    ui.document("run", {**begun.document(), "run_dir": folder, "pid": process.id})
    ui.say(f"{begun.run_id} goes on in the background (pid {process.id})")
    ui.note(f"  gpubed logs {paths.name} {begun.run_id} -f   shows what it prints", whole=True)
    ui.note(f"  gpubed cancel {paths.name} {begun.run_id}   ends it", whole=True)
    return 0


def _has_training(paths: ClusterPaths, process: int) -> bool:
    return any(who.pid == process for who in checkpoints.trainings(paths).values())


def _tell_waiting(ui: UI, paths: ClusterPaths, process: background.Started) -> int:
    ui.document("run", {"run_id": None, "status": "waiting", "pid": process.id})
    ui.note(process.said(), whole=True)
    ui.say(f"it goes on in the background (pid {process.id}) once it can")
    ui.note(f"  gpubed cancel {paths.name}   ends it", whole=True)
    return 0


def _check_arguments(request: Request, repeat: int) -> None:
    """Say what is wrong with a job's arguments before anything starts.

    Raises:
        UsageError: There is no such job, or an argument is wrong.
    """
    job = jobfile.load(request.job)
    job.values(request.job, request.settings)
    for name in request.settings if repeat > 1 else ():
        if job.arguments[name].resumes:
            raise UsageError(
                f"with {name} a run goes on from what another left, which is no repetition",
                f"leave out {name}, or --repeat",
            )


def _former(
    paths: ClusterPaths, job: str | None, again: str | None, *, given: bool
) -> Record | None:
    """Return the run that is to be repeated, if one is.

    Raises:
        UsageError: There is no such run, or something else was asked for, too.
    """
    if again is None:
        return None
    if job or given:
        raise UsageError(
            "--again asks for what that run was asked for, and takes nothing beside it",
            f"gpubed runs {paths.name} show {again} tells what that was",
        )
    return record.find(paths, again)


def _resumed(
    paths: ClusterPaths, job: str | None, resume: str | None, given: dict[str, str]
) -> Record | None:
    """Return the run that is to go on, if one is; `last` is the last one that keeps checkpoints.

    Raises:
        UsageError: There is no such run, it kept no checkpoint, or another job was named.
    """
    if resume is None:
        return None
    found = _last_kept(paths) if resume == "last" else None
    found = found or record.find(paths, resume)
    name = found.request.job
    if job not in (None, name):
        raise UsageError(f"run {found.run_id} is one of {name}, not of {job}", "leave out the job")
    keeps = [key for key, argument in jobfile.load(name).arguments.items() if argument.resumes]
    if not keeps:
        raise UsageError(
            f"job {name} cannot go on from what a run of it left",
            f"gpubed run {paths.name} --again {found.run_id} begins anew; "
            "docs/how-to/write-a-job.md tells how a job keeps checkpoints",
        )
    if not any(found.values.get(key) for key in keeps):
        raise UsageError(
            f"run {found.run_id} kept no checkpoint",
            f"gpubed run {paths.name} {name} --set {keeps[0]}=NAME is a run that keeps some",
        )
    if found.state == "ok" and not given:
        raise UsageError(
            f"run {found.run_id} came to its end: there is nothing to go on with",
            f"gpubed run {paths.name} --resume {found.run_id} --set NAME=VALUE asks for more",
        )
    if found.state == "running":
        raise UsageError(
            f"run {found.run_id} is at work: two that write one checkpoint would damage it",
            f"gpubed cancel {paths.name} {found.run_id}",
        )
    return found


def _require_checkpoint(
    usable: Cluster, resumed: Record, foreseen: Record, *, elastic: bool
) -> None:
    """Refuse to go on with a run whose checkpoints are not there any more.

    Raises:
        UsageError: The cluster has none of them.
    """
    hint = f"gpubed run {usable.name} --again {resumed.run_id} begins anew"
    if elastic:
        hint = training.begin_anew(usable.paths, foreseen.request)
    checkpoint_files.require_some(usable, checkpoints.of(foreseen), hint)


def _last_kept(paths: ClusterPaths) -> Record | None:
    every = record.every(paths)[0].values()
    return next((one for one in reversed([*every]) if checkpoints.of(one)), None)


def _request(
    paths: ClusterPaths, job: str | None, resumed: Record | None, given: dict[str, str]
) -> Request:
    """Return what is asked for: a job, or a run that goes on, with other arguments perhaps."""
    if resumed:
        had = resumed.request
        if resumed.elastic:  # its nodes were what was well then
            had = had.model_copy(update={"choice": Choice()})
        return had.model_copy(update={"settings": {**had.settings, **given}})
    if job is None:
        raise UsageError("which job?", f"gpubed run {paths.name} digits")
    return Request(job=job, settings=given)


def _placed(
    request: Request, choice: Choice, container: str | None, launcher: str | None
) -> Request:
    """Return it with what was said of nodes, image and launcher, each only where it was said.

    Raises:
        UsageError: The image's name is no text.
    """
    if container and (why := command_words.fault(container)):
        raise UsageError(f"--container {container!r} {why}", "--container debian:12")
    said = {
        "choice": None if choice == Choice() else choice,
        "container": container,
        "launcher": launcher,
    }
    return request.model_copy(update={key: value for key, value in said.items() if value})


def _tell_differences(ui: UI, former: Record, foreseen: Record) -> None:
    for difference in compare.differences(former, foreseen):
        ui.mark("update", f"not as in {former.run_id}: {difference}")


def _show(ui: UI, foreseen: Record, repeat: int, left_out: dict[str, str]) -> int:
    document = foreseen.document()
    for key in _OF_ITS_END:
        document.pop(key)
    ui.document("run", {**document, "dry_run": True, "repeat": repeat, "left_out": left_out})
    times = f", {repeat} times" if repeat > 1 else ""
    ui.say(f"{foreseen.request.job}: would start {foreseen.world_size} rank(s){times}")
    for host in foreseen.origin.hosts:
        ui.say(f"  {host.name}: {host.slots} rank(s)")
    ui.say(f"command: {' '.join(foreseen.command)}", whole=True)
    return 0


def _conclude(
    ui: UI,
    job: str,
    result: execution.JobResult,
    output: JobOutput,
    left_out: dict[str, str],
    **more: Any,
) -> int:
    for name, reason in result.left_out.items():
        ui.mark("skip", f"{name} is left out: {reason}")
    ui.document("run", {**result.document(), "left_out": left_out | result.left_out, **more})
    ui.say(f"{job}: {result.status}, {_size(result)}")
    _tell_figures(ui, result)
    for note in _notes(result):
        ui.say(note)
    for one in result.trials or [result]:
        if one.shared_with:
            others = ", ".join(one.shared_with)
            ui.say(f"{one.run_id} shared its nodes with {others}: its figures are of both")
    ui.say(f"results: {result.run_dir}")
    for one in result.trials or [result]:
        for line in () if output.ended_with(one.last_words) else one.last_words:
            ui.note(f"  {line}", whole=True)
    for reason in result.failures:
        ui.error(reason)
    for hint in dict.fromkeys(one.hint for one in result.trials or [result] if one.hint):
        ui.hint(hint)
    return 0 if result.status == "ok" else 1


def _notes(result: execution.JobResult) -> Iterator[str]:
    """Give what must be known of a run's figures."""
    if result.simulated:
        models = ", ".join(result.simulated)
        yield f"simulated: {models} did not compute, the CPU did; these are no figures of a GPU"
    if mixed := trials.mixed(result.devices):
        yield figures.one_line(mixed)
    if result.not_judged:
        yield f"not judged in so small a run: {', '.join(result.not_judged)}"
    if differ := _undeclared(result):
        yield f"metrics.json is not as job.yml says: {differ}"


def _tell_figures(ui: UI, result: execution.JobResult) -> None:
    unknown = Metric(unit="")
    for name, value in (result.statistics or result.metrics).items():
        metric = result.described.get(name, unknown)
        if isinstance(value, Summary):
            ui.say(f"  {name} = {figures.summarized(value, metric.unit)}")
        elif isinstance(value, int | float | str):
            ui.say(f"  {name} = {figures.written(value, metric.unit)}")
    for name, rows in result.metrics.items():
        described = result.described.get(name, unknown)
        columns = described.columns
        if columns and isinstance(rows, list) and rows:
            ui.say(f"{name}:")
            ui.table(
                [_heading(column) for column in columns],
                [[_cell(row, *column) for column in columns.items()] for row in rows],
            )
            if described.note:
                ui.say(described.note)


def _undeclared(result: execution.JobResult) -> str:
    """Say which metrics only the job reported, and which only its description has."""
    told = [one.metrics for one in result.trials or [result] if one.metrics]
    if not told or not result.described:
        return ""
    extra = dict.fromkeys(name for one in told for name in one if name not in result.described)
    lacking = [name for name in result.described if any(name not in one for one in told)]
    parts = {"not declared": list(extra), "not reported": lacking}
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in parts.items() if names)


def _heading(column: str) -> str:
    return column.removesuffix("_bps").removesuffix("_s").replace("_", " ")


def _cell(row: Any, key: str, unit: str) -> str:
    value = row.get(key) if isinstance(row, dict) else None
    return figures.written(value, unit) if isinstance(value, int | float | str) else ""


def _size(result: execution.JobResult) -> str:
    if not result.trials:
        return f"world size {result.world_size}"
    done = sum(trial.status == "ok" for trial in result.trials)
    return f"{done} of {len(result.trials)} trials of world size {result.world_size} each"

"""gpubed run."""

import shlex
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import typer
from typer import Argument, Option
from typer.core import TyperCommand

from gpubed.cli import completion, run_detached, run_request, run_result
from gpubed.cli.job_output import JobOutput
from gpubed.cli.options import ClusterName, Json, Yes, find
from gpubed.cli.run_request import Plan
from gpubed.cli.ui import UI
from gpubed.cluster import lease
from gpubed.configuration import health, unfinished
from gpubed.core import runlock
from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.core.units import duration
from gpubed.engines import interruption
from gpubed.jobs import elastic as training
from gpubed.jobs import execution, job_result, jobfile
from gpubed.jobs.elastic import Bounds
from gpubed.jobs.job_result import JobResult
from gpubed.jobs.runs import compare
from gpubed.jobs.runs.record import Choice, Record
from gpubed.nodes import link_rates, selection
from gpubed.nodes.allocation import Cluster
from gpubed.testbeds.specification import load_cluster

EXAMPLE = "gpubed run lab -- python train.py --lr 0.1   or: gpubed run lab digits --set epochs=20"
PLACE = ("Work", 10)


class _Command(TyperCommand):
    """Takes the words after `--` as a command, or as arguments if a job is named before it."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        end = args.index("--") if "--" in args else len(args)
        if {"-h", "--help"} & {*args[:end]} and {*args[1:2]} & {*jobfile.names()}:
            arguments = jobfile.load(args[1]).arguments.items()
            lines = [
                f"{name}={'' if a.default is None else a.default}  {a.help}"
                for name, a in arguments
            ]
            title = f"Arguments of {args[1]}, each with --set:"
            self.epilog = "\n".join(["\b", title, *lines, "", str(self.epilog)])
        rest = super().parse_args(ctx, args[:end])
        if args[end:] == ["--"] and not ctx.params.get("job"):
            raise UsageError("no command stands behind `--`", "gpubed run lab -- python train.py")
        if words := args[end + 1 :]:
            ctx.params["words"] = words
        return rest


SETTINGS = {"cls": _Command}


def command(
    name: ClusterName,
    job: str | None = Argument(
        None,
        help="A folder of jobs/, see its README.md. If left out, all jobs are listed.",
        autocompletion=completion.jobs,
    ),
    words: list[str] | None = Argument(
        None,
        metavar="[-- COMMAND … | -- --NAME VALUE …]",
        help="A command in this folder, which is sent to the nodes; or arguments of the job.",
    ),
    settings: list[str] | None = Option(
        None,
        "--set",
        metavar="NAME=VALUE",
        help="An argument of the job.",
        autocompletion=completion.settings,
    ),
    nodes: int | None = Option(None, metavar="N", help="Use the first N nodes only."),
    ranks: int | None = Option(None, metavar="N", help="Start N ranks, node after node."),
    on: str | None = Option(
        None,
        metavar="NODE,NODE",
        help="Use these nodes only.",
        autocompletion=completion.several_nodes,
    ),
    repeat: int = Option(1, metavar="K", min=1, help="Run it K times, one after the other."),
    again: str | None = Option(
        None,
        metavar="RUN",
        help="Repeat a run with the same options.",
        autocompletion=completion.runs,
    ),
    resume: str | None = Option(
        None,
        metavar="RUN",
        help="Go on from the checkpoint of a run, even on other nodes.",
        autocompletion=completion.resumable,
    ),
    elastic: bool = Option(
        False,
        "--elastic",
        help="Survive the loss of nodes: go on from the last checkpoint on healthy ones.",
    ),
    least: int = Option(1, "--min", metavar="N", help="With --elastic: wait for N nodes at least."),
    most: int | None = Option(None, "--max", metavar="N", help="With --elastic: N nodes at most."),
    stall_after: str | None = Option(
        None, metavar="TIME", help="End it once ranks of Horovod have waited that long for others."
    ),
    dry_run: bool = Option(
        False, "--dry-run", help="Show what would start, and where; start nothing."
    ),
    detach: bool = Option(
        False, "--detach", "-d", help="Go on in the background, as long as this machine is on."
    ),
    per_node: bool | None = Option(
        None,
        "--per-node/--per-rank",
        help="Start the command once per node, as torchrun wants, or once per GPU.",
        show_default=False,
    ),
    yes: Yes = False,
    container: str | None = Option(
        None, metavar="IMAGE", help="Run the ranks in containers of this image."
    ),
    launcher: str | None = Option(
        None,
        help="ssh: at once; slurm: in the queue; gpulab: by GPULab. By default the one that fits.",
        autocompletion=completion.launchers,
    ),
    as_json: Json = False,
) -> int:
    """Run a command or a job on the nodes; bring its results back."""
    ui, paths = UI(as_json), find(name)
    bounds = Bounds(least, most) if elastic else None
    fixed = (nodes is not None, ranks is not None, on, again, repeat > 1)
    run_request.check_bounds(bounds, least, most, fixed=any(fixed))
    others = (words, settings, nodes, ranks, on, container, launcher, resume, per_node, stall_after)
    former = run_request.former_run(paths, job, again, given=any(others))
    choice = Choice(nodes=nodes, ranks=ranks, on=run_request.named_nodes(on))
    if job and job not in jobfile.names() and (shutil.which(job) or Path(job).is_file()):
        start = [] if shutil.which(job) else ["python"]
        line = shlex.join([*start, job, *(words or [])])
        raise UsageError("a command stands behind `--`", f"gpubed run {paths.name} -- {line}")
    is_command = bool(words) and job is None and resume is None
    given = {**jobfile.parse_settings(settings or [])}
    given |= {} if is_command else jobfile.parse_words(words or [])
    resumed = run_request.resumed_run(paths, job, resume, given)
    if former:
        request = former.request
    else:
        if is_command:
            wanted = run_request.of_command(words or [], per_node, given)
            run_request.confirm_size(ui, wanted, yes=yes)
        else:
            wanted = run_request.wanted(paths, job, resumed, given)
        request = run_request.placed(wanted, choice, container, launcher, stall_after)
    run_request.check_arguments(request, repeat)
    if bounds:
        training.require_elastic(paths, request)
    plan = Plan(request, repeat, former, resumed, bounds)
    interruption.set_hint(f"gpubed runs {paths.name} show last   tells how far it came")
    if bounds and not dry_run:
        return run_detached.run(ui, paths) if detach else _elastic(ui, paths, plan, bounds)
    # A run that cannot start is refused here, before a message says that it starts.
    usable, foreseen, left_out = _foreseen(ui, paths, plan)
    if dry_run:
        return run_result.show(ui, foreseen, repeat, left_out)
    return run_detached.run(ui, paths) if detach else _run(ui, usable, plan, left_out)


def _foreseen(ui: UI, paths: ClusterPaths, plan: Plan) -> tuple[Cluster, Record, dict[str, str]]:
    usable, left_out = _usable(ui, paths)
    choice = {"choice": training.first(plan.bounds, usable)} if plan.bounds else None
    foreseen = execution.foresee(usable, plan.request.model_copy(update=choice))
    if plan.resumed:
        elastic = plan.bounds is not None
        run_request.require_checkpoint(usable, plan.resumed, foreseen, elastic=elastic)
    if former := plan.former:
        run_request.require_no_checkpoint(usable, former, foreseen)
        for difference in compare.differences(former, foreseen):
            ui.mark("update", f"not as in {former.run_id}: {difference}")
    return usable, foreseen, left_out


def _run(ui: UI, usable: Cluster, plan: Plan, left_out: dict[str, str]) -> int:
    request, repeat = plan.request, plan.repeat
    set_ = execution.name_run(request.job) if repeat > 1 else ""
    results = list[JobResult]()
    chosen = selection.choose(usable.allocation, **request.choice.model_dump()).with_ranks
    text = execution.beginning(request.job, chosen)
    terms = execution.Terms(
        set_=set_,
        again=plan.former.run_id if plan.former else "",
        resumes=plan.resumed.run_id if plan.resumed else "",
    )
    with runlock.measuring(usable.paths.state, "run", shared=True), ui.working(text) as show:
        if not ui.err.is_terminal:  # a terminal shows it until the first step is done
            ui.note(text)
        for number in range(repeat):
            if repeat > 1:
                ui.note(f"run {number + 1} of {repeat}")
                terms = replace(terms, repetition=number)
            terms = replace(terms, run_id=execution.name_run(request.job))
            interruption.set_hint(
                f"gpubed runs {usable.name} show {terms.run_id}   tells how far it came"
            )
            output = JobOutput(ui, show, run_detached.log(usable.paths))
            results.append(execution.run(usable, request, output.tell, terms))
    result = job_result.repeated(results) if repeat > 1 else results[0]
    return run_result.conclude(ui, request.job, result, output, left_out)


def _usable(ui: UI, paths: ClusterPaths) -> tuple[Cluster, dict[str, str]]:
    cluster = load_cluster(paths)
    unfinished.require_configured(cluster)
    unfinished.require_none(paths)
    lease.check_not_expired(paths)
    link_rates.require_declared(paths)
    usable, left_out = health.usable(cluster)
    for node in left_out:
        ui.mark("skip", f"{node.node} is left out: {node.reason}")
    return usable, {node.node: node.reason for node in left_out}


def _elastic(ui: UI, paths: ClusterPaths, plan: Plan, bounds: Bounds) -> int:
    request, resumed = plan.request, plan.resumed
    with ui.working(f"{request.job} starts") as show:
        output = JobOutput(ui, show, run_detached.log(paths))
        whole = training.Training(
            paths,
            request,
            bounds,
            lambda message: ui.mark("update", message),
            output.tell,
            resumes=resumed.run_id if resumed else "",
        )
        try:
            result = whole.run()
        except KeyboardInterrupt:
            if whole.run_id:
                again = f"gpubed run {paths.name} --elastic --resume {whole.run_id}"
                interruption.set_hint(f"{again}   goes on with it")
            raise
    if len(whole.legs) > 1:
        rows = [(leg.run_id, ",".join(leg.nodes), leg.why or leg.status) for leg in whole.legs]
        ui.table(["run", "nodes", "its end"], rows)
        ui.say(f"{len(whole.legs)} runs in {duration(whole.seconds)}; what follows is of the last")
    legs = [asdict(leg) for leg in whole.legs]
    total = round(whole.seconds, 2)
    return run_result.conclude(ui, request.job, result, output, {}, legs=legs, total_seconds=total)

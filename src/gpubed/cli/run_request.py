"""Resolves what `gpubed run` should run: a new job, a repeated run or a resumed one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubed.cli.options import seconds
from gpubed.cli.ui import UI
from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.core.reading import Unreadable
from gpubed.core.text import word_fault
from gpubed.core.units import format_bytes
from gpubed.jobs import checkpoint_files, jobfile, source
from gpubed.jobs import elastic as training
from gpubed.jobs.elastic import Bounds
from gpubed.jobs.runs import checkpoints, record
from gpubed.jobs.runs.record import Choice, Record, Request
from gpubed.nodes.allocation import Cluster


@dataclass(frozen=True)
class Plan:
    """What `gpubed run` should start."""

    request: Request
    repeat: int  # how often
    former: Record | None  # the run of `--again`
    resumed: Record | None  # the run of `--resume`, whose checkpoint the new one loads
    bounds: Bounds | None  # of an elastic training


def named_nodes(on: str | None) -> tuple[str, ...]:
    """Return the nodes that `--on` lists; empty without the option."""
    names = tuple(filter(None, (on or "").split(",")))
    if on is not None and not names:
        raise UsageError("--on names no node", "--on node-0,node-2")
    return names


def check_bounds(bounds: Bounds | None, least: int, most: int | None, *, fixed: bool) -> None:
    """Refuse options for the number of nodes that contradict each other.

    Args:
        fixed: Whether another option fixes the nodes or the number of runs.
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


def check_arguments(request: Request, repeat: int) -> None:
    """Refuse an unknown job or a wrong argument before anything starts."""
    job = jobfile.of(request)
    values = job.values(request.job, request.settings)
    for name, argument in job.arguments.items() if repeat > 1 else ():
        if argument.resumes and values[name]:
            leave_out = f"{name}, or --repeat" if name in request.settings else "--repeat"
            raise UsageError(
                f"with {name} each run would resume from the checkpoint of the run before",
                f"leave out {leave_out}",
            )


def former_run(
    paths: ClusterPaths, job: str | None, again: str | None, *, given: bool
) -> Record | None:
    """Return the run that `--again` names, if any; refuse other options beside it (`given`)."""
    if again and (job or given):
        why = "--again repeats a run with the same options, and takes no others"
        raise UsageError(why, f"gpubed runs {paths.name} show {again} lists them")
    return record.find(paths, again) if again is not None else None


def resumed_run(
    paths: ClusterPaths, job: str | None, resume: str | None, given: dict[str, str]
) -> Record | None:
    """Return the run that `--resume` names, if any; `last` is the last run with checkpoints."""
    if resume is None:
        return None
    every = reversed(record.every(paths)[0].values()) if resume == "last" else ()
    found = next((run for run in every if checkpoints.of(run)), None)
    found = found or record.find(paths, resume)
    name = found.request.job
    if found.request.command and given.keys() - {jobfile.CHECKPOINT}:
        kept = f"--set {jobfile.CHECKPOINT}={found.values[jobfile.CHECKPOINT]}"
        raise UsageError(
            f"--resume repeats the command of {found.run_id}, which has no arguments to set",
            f"gpubed run {paths.name} {kept} -- COMMAND … goes on with another command",
        )
    if job not in (None, name):
        raise UsageError(f"run {found.run_id} is one of {name}, not of {job}", "leave out the job")
    arguments = jobfile.of(found.request).arguments.items()
    keeps = [key for key, argument in arguments if argument.resumes]
    if not any(found.values.get(key) for key in keeps):
        raise UsageError(
            f"run {found.run_id} kept no checkpoint",
            f"gpubed run {paths.name} --set {keeps[0]}=NAME {found.request.what} keeps some"
            if keeps
            else "docs/how-to/write-a-job.md tells how a job keeps checkpoints",
        )
    if found.state == "ok" and not given:
        more = f"--resume {found.run_id} --set NAME=VALUE"
        if found.request.command:
            more = f"--set {keeps[0]}={found.values[keeps[0]]} -- COMMAND …"
        raise UsageError(
            f"run {found.run_id} is complete: there is nothing to resume",
            f"gpubed run {paths.name} {more} continues it with other arguments",
        )
    if found.state == "running":
        raise UsageError(
            f"run {found.run_id} is at work: two runs that write one checkpoint would damage it",
            f"gpubed cancel {paths.name} {found.run_id}",
        )
    return found


def require_checkpoint(
    usable: Cluster, resumed: Record, foreseen: Record, *, elastic: bool
) -> None:
    """Raise an error if the checkpoints of the run to resume no longer exist."""
    hint = f"gpubed run {usable.name} --again {resumed.run_id} begins anew"
    if elastic:
        hint = training.begin_anew(usable.paths, foreseen.request)
    checkpoint_files.require_some(usable, checkpoints.of(foreseen), hint)


def require_no_checkpoint(usable: Cluster, former: Record, foreseen: Record) -> None:
    """Refuse to repeat a run whose checkpoints still exist: it would resume from them."""
    for name in checkpoints.of(foreseen):
        # If another run is writing them, the launch reports that.
        if checkpoints.writer(usable.paths, name) or not checkpoint_files.has_some(usable, name):
            continue
        arguments = jobfile.of(foreseen.request).arguments.items()
        key = next(key for key, argument in arguments if argument.resumes)
        run = f"gpubed run {usable.name}"
        raise UsageError(
            f"a repetition of {former.run_id} would resume from its checkpoint in "
            f"{checkpoint_files.folder(usable.plan, name)}",
            f"{run} --set {key}=NAME {foreseen.request.what} begins anew; "
            f"{run} --resume {former.run_id} goes on",
        )


def wanted(
    paths: ClusterPaths, job: str | None, resumed: Record | None, given: dict[str, str]
) -> Request:
    """Return the request: a job, or a run to resume, possibly with other arguments."""
    if resumed:
        request = resumed.request
        if resumed.elastic:  # its nodes were the healthy ones at that time
            request = request.model_copy(update={"choice": Choice()})
        return request.model_copy(update={"settings": {**request.settings, **given}})
    if job is None:
        names, lines = jobfile.names(), []
        for name in names:
            try:
                description = jobfile.load(name).description
            except Unreadable as error:
                description = error.headline
            lines.append(f"  {name:{max(map(len, names))}}  {description}")
        raise UsageError("\n".join(["which job?", *lines]), f"gpubed run {paths.name} digits")
    return Request(job=job, settings=given)


def of_command(words: Sequence[str], per_node: bool | None, given: dict[str, str]) -> Request:
    """Return the request to run a command in the current folder."""
    if given.keys() - {jobfile.CHECKPOINT}:
        raise UsageError(
            "--set is for jobs: write the arguments of a command behind it",
            f"-- COMMAND …; only --set {jobfile.CHECKPOINT}=NAME is for commands, too",
        )
    if why := next(filter(None, map(word_fault, words)), ""):
        raise UsageError(f"a word of the command {why}", "give all of it as UTF-8")
    alone = source.starts_ranks(words) if per_node is None else per_node
    return Request(
        job=source.called(words),
        command=tuple(words),
        folder=str(Path.cwd()),
        per_node=alone,
        settings=given,
    )


def confirm_size(ui: UI, request: Request, *, yes: bool) -> None:
    """Ask before a large folder is sent."""
    folder = Path(request.folder)
    names = source.files(folder)
    if (size := source.size(folder, names)) < source.ASK_FROM:
        return
    what = f"{folder} has {format_bytes(size)} in {len(names):,} files to send, most of it in "
    what += source.largest(folder, names)
    if not ui.confirm(f"{what}. Send it?", yes=yes):
        raise UsageError(
            what, f"list files not to be sent in {folder / source.IGNORE}, or add --yes"
        )


def placed(
    request: Request,
    choice: Choice,
    container: str | None,
    launcher: str | None,
    stall_after: str | None,
) -> Request:
    """Return the request with the nodes, image, launcher and stall time of the command line."""
    after = None if stall_after is None else seconds("--stall-after", stall_after, "10 min")
    if container and (why := word_fault(container)):
        raise UsageError(f"--container {container!r} {why}", "--container debian:12")
    options = {
        "container": container,
        "launcher": launcher,
        "stall_after_s": after,
        "choice": None if choice == Choice() else choice,
    }
    return request.model_copy(update={key: value for key, value in options.items() if value})

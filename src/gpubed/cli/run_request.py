"""Resolves what `gpubed run` should run: a new job, a repeated run or a resumed one."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpubed.cli.ui import UI
from gpubed.core import command_words
from gpubed.core.errors import UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.core.reading import Unreadable
from gpubed.core.units import format_bytes, parse_seconds
from gpubed.jobs import checkpoint_files, jobfile, source
from gpubed.jobs import elastic as training
from gpubed.jobs.elastic import Bounds
from gpubed.jobs.runs import checkpoints, record
from gpubed.jobs.runs.record import Choice, Record, Request
from gpubed.nodes.cluster import Cluster


@dataclass(frozen=True)
class Asked:
    """What is to run.

    Attributes:
        repeat: How often, one after the other.
        former: The run that it repeats.
        resumed: The run whose checkpoint it goes on from.
        bounds: How many nodes an elastic training takes; None of any other run.
    """

    request: Request
    repeat: int
    former: Record | None
    resumed: Record | None
    bounds: Bounds | None


def named_nodes(on: str | None, words: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes that --on names, none without it.

    Args:
        words: What follows the job, where a space within --on puts the rest of it.
    """
    if on is None:
        return ()
    # The shell makes two words of it, and the second seems to be the job's.
    if words and (on.endswith(",") or words[0].startswith(",")):
        whole = ",".join(part.strip(",") for part in (on, words[0]))
        raise UsageError(f"there is a space in --on, before {words[0]!r}", f"--on {whole}")
    if not (names := [name for name in on.split(",") if name]):
        raise UsageError("--on names no node", "--on node-0,node-2")
    return tuple(names)


def check_bounds(bounds: Bounds | None, least: int, most: int | None, *, fixed: bool) -> None:
    """Refuse options for the number of nodes that contradict each other."""
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
                f"with {name} a run goes on from what another left, which is no repetition",
                f"leave out {leave_out}",
            )


def former_run(
    paths: ClusterPaths, job: str | None, again: str | None, *, given: bool
) -> Record | None:
    """Return the run that is to be repeated, if one is."""
    if again is None:
        return None
    if job or given:
        raise UsageError(
            "--again asks for what that run was asked for, and takes nothing beside it",
            f"gpubed runs {paths.name} show {again} tells what that was",
        )
    return record.find(paths, again)


def resumed_run(
    paths: ClusterPaths, job: str | None, resume: str | None, given: dict[str, str]
) -> Record | None:
    """Return the run that is to go on, if one is; `last` is the last one that keeps checkpoints."""
    if resume is None:
        return None
    found = _last_kept(paths) if resume == "last" else None
    found = found or record.find(paths, resume)
    name = found.request.job
    if job not in (None, name):
        raise UsageError(f"run {found.run_id} is one of {name}, not of {job}", "leave out the job")
    keeps = [
        key for key, argument in jobfile.of(found.request).arguments.items() if argument.resumes
    ]
    if not keeps:
        raise UsageError(
            f"job {name} cannot go on from what a run of it left",
            f"gpubed run {paths.name} --again {found.run_id} begins anew; "
            "docs/how-to/write-a-job.md tells how a job keeps checkpoints",
        )
    if not any(found.values.get(key) for key in keeps):
        raise UsageError(
            f"run {found.run_id} kept no checkpoint",
            f"gpubed run {paths.name} --set {keeps[0]}=NAME {found.request.what} keeps some",
        )
    if found.state == "ok" and not given:
        more = f"--resume {found.run_id} --set NAME=VALUE"
        if found.request.command:
            more = f"--set {keeps[0]}={found.values[keeps[0]]} -- COMMAND …"
        raise UsageError(
            f"run {found.run_id} came to its end: there is nothing to go on with",
            f"gpubed run {paths.name} {more} asks for more",
        )
    if found.state == "running":
        raise UsageError(
            f"run {found.run_id} is at work: two that write one checkpoint would damage it",
            f"gpubed cancel {paths.name} {found.run_id}",
        )
    return found


def require_checkpoint(
    usable: Cluster, resumed: Record, foreseen: Record, *, elastic: bool
) -> None:
    """Refuse to go on with a run whose checkpoints are not there any more."""
    hint = f"gpubed run {usable.name} --again {resumed.run_id} begins anew"
    if elastic:
        hint = training.begin_anew(usable.paths, foreseen.request)
    checkpoint_files.require_some(usable, checkpoints.of(foreseen), hint)


def require_no_checkpoint(usable: Cluster, former: Record, foreseen: Record) -> None:
    """Refuse to repeat a run whose checkpoints still exist: it would resume from them."""
    for name in checkpoints.of(foreseen):
        # Where somebody writes them, that is told in place of it.
        if checkpoints.writer(usable.paths, name) or not checkpoint_files.has_some(usable, name):
            continue
        what = foreseen.request.what
        key = next(key for key, it in jobfile.of(foreseen.request).arguments.items() if it.resumes)
        run = f"gpubed run {usable.name}"
        raise UsageError(
            f"it would go on from what {former.run_id} left in "
            f"{checkpoint_files.folder(usable.plan, name)}, which is no repetition",
            f"{run} --set {key}=NAME {what} begins anew; {run} --resume {former.run_id} goes on",
        )


def _last_kept(paths: ClusterPaths) -> Record | None:
    every = record.every(paths)[0].values()
    return next((one for one in reversed([*every]) if checkpoints.of(one)), None)


def wanted(
    paths: ClusterPaths, job: str | None, resumed: Record | None, given: dict[str, str]
) -> Request:
    """Return the request: a job, or a run to resume, possibly with other arguments."""
    if resumed:
        had = resumed.request
        if resumed.elastic:  # its nodes were those that were well then
            had = had.model_copy(update={"choice": Choice()})
        return had.model_copy(update={"settings": {**had.settings, **given}})
    if job is None:
        names = jobfile.names()
        listed = [f"  {name:{max(map(len, names))}}  {_summary(name)}" for name in names]
        raise UsageError("\n".join(["which job?", *listed]), f"gpubed run {paths.name} digits")
    return Request(job=job, settings=given)


def of_command(words: Sequence[str], per_node: bool | None, given: dict[str, str]) -> Request:
    """Return the request to run a command in the current folder."""
    if given.keys() - {jobfile.CHECKPOINT}:
        raise UsageError(
            "--set is for jobs: write the arguments of a command behind it",
            f"-- COMMAND …; only --set {jobfile.CHECKPOINT}=NAME is for commands, too",
        )
    if why := next(filter(None, map(command_words.fault, words)), ""):
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
    if not ui.confirm(f"{what}. Send it?", yes=yes, default=False):
        raise UsageError(what, f"name what stays here in {folder / source.IGNORE}, or add --yes")


def _summary(job: str) -> str:
    try:
        return jobfile.load(job).description
    except Unreadable as error:
        return error.headline


def placed(
    request: Request,
    choice: Choice,
    container: str | None,
    launcher: str | None,
    stall_after: str | None,
) -> Request:
    """Return the request with the nodes, image, launcher and stall time that were named.

    Raises:
        UsageError: The image's name or the time is malformed.
    """
    try:
        after = None if stall_after is None else parse_seconds(stall_after, "10 min")
    except ValueError as error:
        raise UsageError(f"--stall-after {stall_after!r} {error}", "--stall-after 10min") from None
    if container and (why := command_words.fault(container)):
        raise UsageError(f"--container {container!r} {why}", "--container debian:12")
    said = {
        "choice": None if choice == Choice() else choice,
        "container": container,
        "launcher": launcher,
        "stall_after_s": after,
    }
    return request.model_copy(update={key: value for key, value in said.items() if value})

"""gpubed runs."""

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from typer import Argument, Option

from gpubed.cli import completion, run_result
from gpubed.cli.options import ClusterName, Json, Yes, find
from gpubed.cli.ui import UI
from gpubed.core import holm, runlock
from gpubed.core.copying import as_name
from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.core.text import nearest_name
from gpubed.jobs import curves, jobfile, trials
from gpubed.jobs.jobfile import Metric
from gpubed.jobs.metrics import formatted, one_line
from gpubed.jobs.runs import checkpoints, compare, record
from gpubed.jobs.runs.record import Record, Request

EXAMPLE = "gpubed runs lab compare 20261123-1 last"
PLACE = ("Work", 20)
_ACTIONS = ("list", "show", "compare", "prune")
_STATES = ("ok", "failed", "interrupted", "running")
_SHOWN = 20  # runs in a list, by default
_FIGURES = 2  # of a run in a list
_POINTS = 1000  # of a curve, in JSON
_FILES_OF_CURVES = (
    'cd %s || exit 0; ls -d "$PWD"/metrics.jsonl "$PWD"/metrics.csv 2>/dev/null; '
    "find \"$PWD\" -type f -size -64M -name 'events.out.tfevents.*'"
)
_WIDE = 120  # columns of a terminal: on a smaller one tables have fewer columns


def command(
    name: ClusterName,
    action: str = Argument(
        "list", metavar="list|show|compare|prune", autocompletion=lambda: list(_ACTIONS)
    ),
    names: list[str] | None = Argument(
        None,
        metavar="[RUN]…",
        help="Runs: a name, the beginning of a name, or `last`.",
        autocompletion=completion.runs,
    ),
    job: str | None = Option(
        None, help="List the runs of this job only.", autocompletion=completion.jobs
    ),
    status: str | None = Option(
        None,
        help=f"List runs of this status only: {', '.join(_STATES)}.",
        autocompletion=lambda: list(_STATES),
    ),
    last: int = Option(_SHOWN, min=1, help="How many runs to list, or to keep."),
    as_json: Json = False,
    yes: Yes = False,
) -> int:
    """List runs, show one, compare several, or remove old ones."""
    ui, paths = UI(as_json), find(name)
    if status not in (None, *_STATES):
        raise UsageError(f"a run has no status {status!r}", f"one of: {', '.join(_STATES)}")
    actions: dict[str, Callable[[], int]] = {
        "list": lambda: _list(ui, paths, job, status, last),
        "show": lambda: _show(ui, _named(paths, names, 1, "show"), paths),
        "compare": lambda: _compare(ui, _named(paths, names, 2, "compare"), paths),
        "prune": lambda: _prune(ui, paths, job, last, yes=yes),
    }
    if action not in actions:
        raise UsageError(f"runs cannot {action!r}", f"one of: {', '.join(_ACTIONS)}")
    if names and action in ("list", "prune"):
        raise UsageError(f"{action} takes no run", f"gpubed runs {paths.name} show {names[0]}")
    return actions[action]()


def _named(
    paths: ClusterPaths, names: Sequence[str] | None, least: int, action: str
) -> list[Record]:
    if not names or len(names) < least or (least == 1 and len(names) > 1):
        wanted = "one run" if least == 1 else f"at least {least} runs"
        example = " ".join(["RUN"] * least)
        raise UsageError(f"{action} needs {wanted}", f"gpubed runs {paths.name} {action} {example}")
    return [record.find(paths, name) for name in names]


def _every(ui: UI, paths: ClusterPaths) -> dict[Path, Record]:
    records, faults = record.every(paths)
    for fault in faults:
        ui.note(f"{fault.message}: it is left out")
    return records


def _list(ui: UI, paths: ClusterPaths, job: str | None, status: str | None, last: int) -> int:
    every = _every(ui, paths).values()
    if job and job not in (jobs := sorted({*jobfile.names(), *(r.request.job for r in every)})):
        raise UsageError(f"there is no job {job!r}", nearest_name(job, jobs))
    found = [run for run in every if job in (None, run.request.job) and status in (None, run.state)]
    shown = found[-last:]
    ui.document("runs", {"runs": [run.document() for run in shown]})
    if not shown:
        filtered = "such " if job or status else ""
        ui.say(f"there is no {filtered}run yet; gpubed run {paths.name} digits starts one")
        return 0
    columns: dict[str, Callable[[Record], object]] = {
        "run": lambda run: run.run_id,
        "status": lambda run: run.state,
        "by": lambda run: run.by,
        "ranks": lambda run: run.world_size,
        "took": lambda run: "" if run.seconds is None else timedelta(seconds=round(run.seconds)),
        "arguments": lambda run: (
            shlex.join(run.request.command)
            or " ".join(f"{name}={value}" for name, value in run.request.settings.items())
        ),
        "figures": lambda run: (
            run.cause.short
            if run.cause and run.state == "failed"
            else _main_figures(run) or (run.progress and run.progress.reached)
        ),
    }
    if not any(run.by for run in shown):
        del columns["by"]
    if ui.columns < _WIDE:
        del columns["arguments"]  # `show` has them
    ui.table(list(columns), [[cell(run) for cell in columns.values()] for run in shown])
    if len(found) > len(shown):
        ui.note(f"{len(found) - len(shown)} older: gpubed runs {paths.name} --last {len(found)}")
    if paths.checkpoints.is_dir():
        ui.note(f"collected checkpoints: {paths.checkpoints}")
    return 0


def _metrics(request: Request) -> dict[str, Metric]:
    try:
        return jobfile.of(request).metrics
    except GpubedError:
        return {}  # the job was removed, its runs were not


def _main_figures(run: Record) -> str:
    metrics, figures = _metrics(run.request), list[str]()
    for name in dict.fromkeys(("images_per_s", "busbw_bps", *run.metrics)):
        value, metric = run.metrics.get(name), metrics.get(name, Metric(unit=""))
        measures = not (metric.setting or name in compare.SETTINGS)
        if measures and isinstance(value, int | float) and not isinstance(value, bool):
            figures.append(f"{one_line(name)} {formatted(value, metric.unit)}")
    emulated = ["emulated compute"] if run.metrics.get("emulated") else []
    return ", ".join([*emulated, *figures[:_FIGURES]])


def _show(ui: UI, records: Sequence[Record], paths: ClusterPaths) -> int:
    run = records[0]
    folder = paths.runs / run.run_id
    # Only complete runs have checksums.
    changed = record.unsealed(folder) if run.state in ("ok", "failed") else []
    names = checkpoints.of(run)
    kept = [str(found) for name in names if (found := checkpoints.collected(paths, name))]
    # The files of a run that is at work, or was interrupted, are on the cluster.
    on_cluster = run.origin.hosts and run.state in ("running", "interrupted")
    by_step = curves.read(folder) or (_curves_so_far(paths, run) if on_cluster else {})
    thinned = {name: curves.thinned(points, _POINTS) for name, points in by_step.items()}
    more = {"changed_files": changed, "collected_checkpoints": kept, "curves": thinned}
    ui.document("runs", {**run.document(), "run_dir": str(folder), **more})
    ui.say(f"{run.run_id}: {run.state}, world size {run.world_size}")
    ui.say(f"  started {run.started.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC")
    for host in run.origin.hosts:
        ui.say(f"  {host.name}: {host.slots} rank(s), {host.hardware or host.id}")
    ui.say(f"  recipe {run.origin.recipe} ({run.origin.recipe_sha256[:8]})")
    for label, value in (("by", run.by), ("goes on from", run.resumes), ("git", run.origin.git)):
        if value:
            ui.say(f"  {label} {value}")
    ui.say(f"  command: {' '.join(run.command)}", whole=True)
    run_result.show_figures(ui, run.metrics, _metrics(run.request), run.devices)
    _show_curves(ui, by_step)
    if run.progress:
        how = "is at" if run.state == "running" else "came to"
        ui.say(f"  {how} {one_line(str(run.progress))}")
    _show_shared(ui, [run])
    for reason in run.failures:
        how = "ended" if run.state == "interrupted" else "failed"
        ui.say(f"  {how}: {one_line(reason)}")
    for line in run.last_words:
        ui.say(f"    {one_line(line)}", whole=True)
    if changed:
        ui.note(f"not as at its end: {', '.join(map(one_line, changed))}")
    ui.say(f"folder: {folder}", whole=True)
    if on_cluster and not (folder / record.SUMS).exists():
        ui.say(f"files:  gpubed get {paths.name} runs/{run.run_id}", whole=True)
    for place in kept:
        ui.say(f"collected checkpoints: {place}", whole=True)
    command = f"gpubed run {paths.name}"
    # A repetition with checkpoints would resume from them.
    resume = f"resume: {command}{' --elastic' if run.elastic else ''} --resume {run.run_id}"
    ui.say(resume if names else f"again:  {command} --again {run.run_id}", whole=True)
    return 0


def _curves_so_far(paths: ClusterPaths, run: Record) -> dict[str, curves.Points]:
    """Return the curves in a run's files on the cluster; empty if the head does not answer."""
    from gpubed.nodes.ssh import SSH  # slow to load
    from gpubed.testbeds.specification import load_cluster

    with TemporaryDirectory() as name, suppress(GpubedError):
        cluster, here = load_cluster(paths), Path(name)
        there = f"{cluster.plan.spec.storage.shared.path}/runs/{run.run_id}"
        with SSH(cluster.allocation.head, paths) as head:
            listed = head.run(_FILES_OF_CURVES, there).stdout.splitlines()
            for number, file in enumerate(map(Path, listed)):
                # Event files in different folders may have the same name.
                beside = (str(number), as_name(file.parent.name)) if "events" in file.name else ()
                local = here.joinpath(*beside, as_name(file.name))
                local.parent.mkdir(parents=True, exist_ok=True)
                head.get(str(file), local)
        return curves.read(here)
    return {}


def _show_curves(ui: UI, by_step: Mapping[str, curves.Points]) -> None:
    for name, points in by_step.items():
        values = [value for _, value in curves.thinned(points, len(points))]
        if len(values) > 1:
            ends = (values[0], values[-1], min(values))
            first, last, least = (formatted(value, "") for value in ends)
            line = f"{curves.drawn(points)}  {first} to {last}, least {least}"
            ui.say(f"  {one_line(name)}  {line}", whole=True)


def _compare(ui: UI, records: Sequence[Record], paths: ClusterPaths) -> int:
    every = _every(ui, paths).values()
    first, *others = records
    metrics = _metrics(first.request)
    sides = [
        (compare.repetitions(first, other, every), compare.repetitions(other, first, every))
        for other in others
    ]
    if len({bool(run.metrics.get("emulated")) for run in records}) > 1:
        why = "figures of emulated compute and others make no ratio"
        raise UsageError(why, f"gpubed runs {paths.name} list names the emulated ones")
    ratios_of = compare.ratios(
        sides, {*compare.SETTINGS, *(name for name, metric in metrics.items() if metric.setting)}
    )
    pairs = []
    for other, (before, now), ratios in zip(others, sides, ratios_of, strict=True):
        differences = compare.differences(first, other)
        pairs.append(
            {
                "runs": [first.run_id, other.run_id],
                "differences": [vars(difference) for difference in differences],
                "metrics": [ratio.document() for ratio in ratios],
            }
        )
        of = (f" (mean of the {len(side)} of its set)" * (len(side) > 1) for side in (before, now))
        ui.say(f"{first.run_id}{next(of)} → {other.run_id}{next(of)}")
        for difference in differences:
            ui.say(f"  {difference}")
        if not differences:
            ui.say("  made alike")
        _show_shared(ui, [*before, *now])
        for side in (before, now):
            if mixed := trials.mixed(sorted({device for run in side for device in run.devices})):
                ui.say(f"  {side[0].run_id} and its set: {one_line(mixed)}")
        if ratios:
            _show_ratios(ui, metrics, ratios)
        else:
            ui.say(f"  nothing to compare: {compare.why_none(before, now)}")
    every_ratio = [ratio for ratios in ratios_of for ratio in ratios]
    count = max((ratio.chance.count for ratio in every_ratio if ratio.chance), default=0)
    if any(max(ratio.runs) > 1 for ratio in every_ratio):
        ui.say("Of several runs, before and now are geometric means, as ratios are of these.")
    if count > 1:
        ui.say(holm.footnote(count))
    ui.document("runs", {"comparisons": pairs})
    return 0


def _show_shared(ui: UI, records: Sequence[Record]) -> None:
    for run in {run.run_id: run for run in records if run.shared_with}.values():
        others = one_line(", ".join(run.shared_with))
        ui.say(f"  {run.run_id} shared its nodes with {others}: its figures are of both")


def _show_ratios(ui: UI, metrics: Mapping[str, Metric], ratios: Sequence[compare.Ratio]) -> None:
    none = Metric(unit="")
    columns: dict[str, Callable[[compare.Ratio], str]] = {
        "metric": lambda ratio: ratio.metric,
        "before": lambda ratio: formatted(ratio.before, metrics.get(ratio.metric, none).unit),
        "now": lambda ratio: formatted(ratio.now, metrics.get(ratio.metric, none).unit),
        "ratio": lambda ratio: "" if ratio.ratio is None else f"{ratio.ratio:.3f}",
        "95 % interval": lambda ratio: compare.bounds(ratio.low, ratio.high),
        "p": lambda ratio: holm.format_p(ratio.chance),
        "runs": lambda ratio: f"{ratio.runs[0]}, {ratio.runs[1]}",
        "verdict": lambda ratio: ratio.verdict,
    }
    if ui.columns < _WIDE:
        del columns["runs"]  # the lines above the table have them
    ui.table(list(columns), [[cell(ratio) for cell in columns.values()] for ratio in ratios])


def _prune(ui: UI, paths: ClusterPaths, job: str | None, last: int, *, yes: bool) -> int:
    """Remove the controller's folders of old runs; those on the cluster's shared storage stay."""
    # Removes the folders that were listed, whatever run a record in them names.
    ended = [
        folder
        for folder, run in _every(ui, paths).items()
        if job in (None, run.request.job) and run.state != "running"
    ]
    doomed = ended[:-last]
    if ended and not job:
        # A newer folder without a record may belong to a run that is about to write it.
        doomed += [path for path in record.undescribed(paths) if path.name < ended[-1].name]
    removed: list[str] = []
    if doomed:
        first, end = doomed[0].name, doomed[-1].name
        question = f"Remove {len(doomed)} run(s), {first} to {end}, with their results?"
        if not ui.confirm(question, yes=yes):
            raise UsageError(
                f"not confirmed, so nothing was removed: {len(doomed)} run(s)",
                f"gpubed runs {paths.name} prune --last {last} -y",
            )
    for folder in doomed:
        if runlock.holder(folder) is None:
            shutil.rmtree(folder)
            removed.append(folder.name)
    kept = sum(folder.exists() for folder in ended)
    ui.document("runs", {"removed": removed, "kept": kept})
    ui.say(f"removed {len(removed)} run(s), kept {kept}")
    return 0

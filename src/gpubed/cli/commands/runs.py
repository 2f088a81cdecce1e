"""gpubed runs."""

import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from typer import Argument, Option

from gpubed.cli import completion
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
_SHOWN = 20
_FIGURES = 2  # in a row
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
        help="Runs: a name, the beginning of one, or `last`.",
        autocompletion=completion.runs,
    ),
    job: str | None = Option(
        None, help="List the runs of this job only.", autocompletion=completion.jobs
    ),
    status: str | None = Option(
        None, help=f"List those only: {', '.join(_STATES)}.", autocompletion=lambda: list(_STATES)
    ),
    last: int = Option(_SHOWN, min=1, help="List so many, or keep so many."),
    as_json: Json = False,
    yes: Yes = False,
) -> int:
    """List runs, show one, compare several, or remove old ones."""
    ui, paths = UI(as_json), find(name)
    if status not in (None, *_STATES):
        raise UsageError(f"no run is ever {status!r}", f"one of: {', '.join(_STATES)}")
    actions: dict[str, Callable[[], int]] = {
        "list": lambda: _list(ui, paths, job, status, last),
        "show": lambda: _show(ui, _meant(paths, names, 1, "show"), paths),
        "compare": lambda: _compare(ui, _meant(paths, names, 2, "compare"), paths),
        "prune": lambda: _prune(ui, paths, job, last, yes=yes),
    }
    if action not in actions:
        raise UsageError(f"runs cannot {action!r}", f"one of: {', '.join(_ACTIONS)}")
    if names and action in ("list", "prune"):
        raise UsageError(f"{action} takes no run", f"gpubed runs {paths.name} show {names[0]}")
    return actions[action]()


def _meant(
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
    if job and job not in (known := sorted({*jobfile.names(), *(r.request.job for r in every)})):
        raise UsageError(f"there is no job {job!r}", nearest_name(job, known))
    found = [one for one in every if job in (None, one.request.job) and status in (None, one.state)]
    shown = found[-last:]
    ui.document("runs", {"runs": [one.document() for one in shown]})
    if not shown:
        filtered = "such " if job or status else ""
        ui.say(f"there is no {filtered}run yet; gpubed run {paths.name} digits starts one")
        return 0
    columns: dict[str, Callable[[Record], object]] = {
        "run": lambda one: one.run_id,
        "status": lambda one: one.state,
        "by": lambda one: one.by,
        "ranks": lambda one: one.world_size,
        "took": lambda one: "" if one.seconds is None else timedelta(seconds=round(one.seconds)),
        "arguments": lambda one: (
            shlex.join(one.request.command)
            or " ".join(f"{name}={value}" for name, value in one.request.settings.items())
        ),
        "figures": lambda one: (
            one.cause.short
            if one.cause and one.state == "failed"
            else _main_figures(one) or (one.progress and one.progress.reached)
        ),
    }
    if not any(one.by for one in shown):
        del columns["by"]
    if ui.columns < _WIDE:
        del columns["arguments"]  # `show` has them
    ui.table(list(columns), [[told(one) for told in columns.values()] for one in shown])
    if len(found) > len(shown):
        ui.note(f"{len(found) - len(shown)} older: gpubed runs {paths.name} --last {len(found)}")
    if paths.checkpoints.is_dir():
        ui.note(f"collected checkpoints: {paths.checkpoints}")
    return 0


def _described(request: Request) -> dict[str, Metric]:
    try:
        return jobfile.of(request).metrics
    except GpubedError:
        return {}  # the job is gone, its runs are not


def _main_figures(one: Record) -> str:
    described, told = _described(one.request), list[str]()
    for name in dict.fromkeys(("images_per_s", "busbw_bps", *one.metrics)):
        value, of = one.metrics.get(name), described.get(name, Metric(unit=""))
        measures = not (of.setting or name in compare.SETTINGS)
        if measures and isinstance(value, int | float) and not isinstance(value, bool):
            told.append(f"{one_line(name)} {formatted(value, of.unit)}")
    emulated = ["emulated compute"] if one.metrics.get("emulated") else []
    return ", ".join([*emulated, *told[:_FIGURES]])


def _show(ui: UI, records: Sequence[Record], paths: ClusterPaths) -> int:
    one = records[0]
    folder = paths.runs / one.run_id
    # One that did not come to its end has no checksums.
    changed = record.unsealed(folder) if one.state in ("ok", "failed") else []
    names = checkpoints.of(one)
    kept = [str(found) for name in names if (found := checkpoints.collected(paths, name))]
    # The files of a run that is at work, or was interrupted, are on the cluster.
    there = one.origin.hosts and one.state in ("running", "interrupted")
    by_step = curves.read(folder) or (_curves_so_far(paths, one) if there else {})
    thinned = {name: curves.thinned(points, _POINTS) for name, points in by_step.items()}
    beside = {"changed_files": changed, "collected_checkpoints": kept, "curves": thinned}
    ui.document("runs", {**one.document(), "run_dir": str(folder), **beside})
    ui.say(f"{one.run_id}: {one.state}, world size {one.world_size}")
    ui.say(f"  started {one.started.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC")
    for host in one.origin.hosts:
        ui.say(f"  {host.name}: {host.slots} rank(s), {host.hardware or host.id}")
    ui.say(f"  recipe {one.origin.recipe} ({one.origin.recipe_sha256[:8]})")
    for what, told in (("by", one.by), ("goes on from", one.resumes), ("git", one.origin.git)):
        if told:
            ui.say(f"  {what} {told}")
    ui.say(f"  command: {' '.join(one.command)}", whole=True)
    _tell_figures(ui, one)
    _tell_curves(ui, by_step)
    if one.progress:
        how = "is at" if one.state == "running" else "came to"
        ui.say(f"  {how} {one_line(str(one.progress))}")
    _tell_shared(ui, [one])
    for reason in one.failures:
        how = "ended" if one.state == "interrupted" else "failed"
        ui.say(f"  {how}: {one_line(reason)}")
    for line in one.last_words:
        ui.say(f"    {one_line(line)}", whole=True)
    if changed:
        ui.note(f"not as at its end: {', '.join(map(one_line, changed))}")
    ui.say(f"folder: {folder}", whole=True)
    if there and not (folder / record.SUMS).exists():
        ui.say(f"files:  gpubed get {paths.name} runs/{one.run_id}", whole=True)
    for place in kept:
        ui.say(f"collected checkpoints: {place}", whole=True)
    run = f"gpubed run {paths.name}"
    # With checkpoints it would go on from them, which is no repetition.
    resume = f"resume: {run}{' --elastic' if one.elastic else ''} --resume {one.run_id}"
    ui.say(resume if names else f"again:  {run} --again {one.run_id}", whole=True)
    return 0


def _curves_so_far(paths: ClusterPaths, one: Record) -> dict[str, curves.Points]:
    """Return the curves of a run whose files are still on the cluster; none if it is silent."""
    from gpubed.nodes.ssh import SSH  # slow to load
    from gpubed.testbeds.specification import load_cluster

    with TemporaryDirectory() as name, suppress(GpubedError):
        cluster, here = load_cluster(paths), Path(name)
        there = f"{cluster.plan.spec.storage.shared.path}/runs/{one.run_id}"
        with SSH(cluster.allocation.head, paths) as head:
            listed = head.run(_FILES_OF_CURVES, there).stdout.splitlines()
            for number, file in enumerate(map(Path, listed)):
                # Event files of several folders may have one name.
                beside = (str(number), as_name(file.parent.name)) if "events" in file.name else ()
                local = here.joinpath(*beside, as_name(file.name))
                local.parent.mkdir(parents=True, exist_ok=True)
                head.get(str(file), local)
        return curves.read(here)
    return {}


def _tell_curves(ui: UI, by_step: Mapping[str, curves.Points]) -> None:
    for name, points in by_step.items():
        values = [value for _, value in curves.thinned(points, len(points))]
        if len(values) > 1:
            ends = (values[0], values[-1], min(values))
            first, last, least = (formatted(value, "") for value in ends)
            line = f"{curves.drawn(points)}  {first} to {last}, least {least}"
            ui.say(f"  {one_line(name)}  {line}", whole=True)


def _tell_figures(ui: UI, one: Record) -> None:
    units = _described(one.request)
    for name, value in one.metrics.items():
        if isinstance(value, int | float | str):
            told = formatted(value, units.get(name, Metric(unit="")).unit)
            ui.say(f"  {one_line(name)} = {told}")
    if mixed := trials.mixed(one.devices):
        ui.say(f"  {one_line(mixed)}")


def _compare(ui: UI, records: Sequence[Record], paths: ClusterPaths) -> int:
    known = _every(ui, paths).values()
    first, *others = records
    described = _described(first.request)
    sides = [
        (compare.repetitions(first, other, known), compare.repetitions(other, first, known))
        for other in others
    ]
    if len({bool(one.metrics.get("emulated")) for one in records}) > 1:
        why = "figures of emulated compute and others make no ratio"
        raise UsageError(why, f"gpubed runs {paths.name} list names the emulated ones")
    ratios_of = compare.ratios(
        sides,
        {*compare.SETTINGS, *(name for name, metric in described.items() if metric.setting)},
    )
    pairs = []
    for other, (before, now), ratios in zip(others, sides, ratios_of, strict=True):
        differences = compare.differences(first, other)
        pairs.append(
            {
                "runs": [first.run_id, other.run_id],
                "differences": [vars(one) for one in differences],
                "metrics": [one.document() for one in ratios],
            }
        )
        of = (f" (mean of the {len(side)} of its set)" * (len(side) > 1) for side in (before, now))
        ui.say(f"{first.run_id}{next(of)} → {other.run_id}{next(of)}")
        for difference in differences:
            ui.say(f"  {difference}")
        if not differences:
            ui.say("  made alike")
        _tell_shared(ui, [*before, *now])
        for side in (before, now):
            if mixed := trials.mixed(sorted({device for one in side for device in one.devices})):
                ui.say(f"  {side[0].run_id} and its set: {one_line(mixed)}")
        if ratios:
            _tell_ratios(ui, described, ratios)
        else:
            ui.say(f"  nothing to compare: {compare.why_none(before, now)}")
    count = max((one.chance.count for each in ratios_of for one in each if one.chance), default=0)
    if any(max(one.runs) > 1 for each in ratios_of for one in each):
        ui.say("Of several runs, before and now are geometric means, as ratios are of these.")
    if count > 1:
        ui.say(holm.told(count))
    ui.document("runs", {"comparisons": pairs})
    return 0


def _tell_shared(ui: UI, records: Sequence[Record]) -> None:
    for one in {one.run_id: one for one in records if one.shared_with}.values():
        others = one_line(", ".join(one.shared_with))
        ui.say(f"  {one.run_id} shared its nodes with {others}: its figures are of both")


def _tell_ratios(ui: UI, units: Mapping[str, Metric], ratios: Sequence[compare.Ratio]) -> None:
    none = Metric(unit="")
    columns: dict[str, Callable[[compare.Ratio], str]] = {
        "metric": lambda one: one.metric,
        "before": lambda one: formatted(one.before, units.get(one.metric, none).unit),
        "now": lambda one: formatted(one.now, units.get(one.metric, none).unit),
        "ratio": lambda one: "" if one.ratio is None else f"{one.ratio:.3f}",
        "95 % interval": lambda one: compare.bounds(one.low, one.high),
        "p": lambda one: holm.written(one.chance),
        "runs": lambda one: f"{one.runs[0]}, {one.runs[1]}",
        "verdict": lambda one: one.verdict,
    }
    if ui.columns < _WIDE:
        del columns["runs"]  # the first lines say them
    ui.table(list(columns), [[told(one) for told in columns.values()] for one in ratios])


def _prune(ui: UI, paths: ClusterPaths, job: str | None, last: int, *, yes: bool) -> int:
    """Remove the controller's folders of old runs; those on the cluster's shared storage stay."""
    # What was looked at is what goes, whatever a record says of itself.
    ended = [
        folder
        for folder, one in _every(ui, paths).items()
        if job in (None, one.request.job) and one.state != "running"
    ]
    doomed = ended[:-last]
    if ended and not job:
        # One that began after the newest of them may be about to be described.
        doomed += [one for one in record.undescribed(paths) if one.name < ended[-1].name]
    gone: list[str] = []
    if doomed:
        first, end = doomed[0].name, doomed[-1].name
        asked = f"Remove {len(doomed)} run(s), {first} to {end}, with their results?"
        if not ui.confirm(asked, yes=yes, default=False):
            raise UsageError(
                f"not confirmed, so nothing was removed: {len(doomed)} run(s)",
                f"gpubed runs {paths.name} prune --last {last} -y",
            )
    for folder in doomed:
        if runlock.holder(folder) is None:
            shutil.rmtree(folder)
            gone.append(folder.name)
    kept = sum(folder.exists() for folder in ended)
    ui.document("runs", {"removed": gone, "kept": kept})
    ui.say(f"removed {len(gone)} run(s), kept {kept}")
    return 0

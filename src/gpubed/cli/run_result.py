"""Prints what `gpubed run` would start, and the result of a job."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gpubed.cli.job_output import JobOutput
from gpubed.cli.ui import UI
from gpubed.jobs.job_result import JobResult
from gpubed.jobs.jobfile import Metric
from gpubed.jobs.metrics import formatted, one_line, summarized
from gpubed.jobs.runs.record import Record
from gpubed.jobs.trials import Summary
from gpubed.jobs.trials import mixed as mixed_devices

# Keys of a run's document that are unknown before it starts.
_RESULTS = (
    *("status", "seconds", "failures", "cause", "last_words", "metrics", "devices"),
    *("started", "set", "repetition", "again", "resumes"),
)


def show(ui: UI, foreseen: Record, repeat: int, left_out: dict[str, str]) -> int:
    """Print what would start, and where; return an exit code."""
    document = foreseen.document()
    for key in _RESULTS:
        document.pop(key)
    ui.document("run", {**document, "dry_run": True, "repeat": repeat, "left_out": left_out})
    times = f", {repeat} times" if repeat > 1 else ""
    ui.say(f"{foreseen.request.job}: would start {foreseen.world_size} rank(s){times}")
    for host in foreseen.origin.hosts:
        ui.say(f"  {host.name}: {host.slots} rank(s)")
    ui.say(f"command: {' '.join(foreseen.command)}", whole=True)
    return 0


def conclude(
    ui: UI, job: str, result: JobResult, output: JobOutput, left_out: dict[str, str], **more: Any
) -> int:
    """Print a job's figures, the folder of its results, and failures; return an exit code."""
    for name, reason in result.left_out.items():
        ui.mark("skip", f"{name} is left out: {reason}")
    ui.document("run", {**result.document(), "left_out": left_out | result.left_out, **more})
    ui.say(f"{job}: {result.status}, {_size(result)}")
    show_figures(ui, result.statistics or result.metrics, result.described, result.devices)
    _show_tables(ui, result)
    for note in _notes(result):
        ui.say(note)
    trials = result.trials or [result]
    for trial in trials:
        if trial.shared_with:
            others = ", ".join(trial.shared_with)
            ui.say(f"{trial.run_id} shared its nodes with {others}: its figures are of both")
    ui.say(f"results: {result.run_dir}")
    for trial in trials:
        for line in () if output.ended_with(trial.last_words) else trial.last_words:
            ui.note(f"  {line}", whole=True)
    for reason in result.failures:
        ui.error(reason)
    for hint in dict.fromkeys(trial.hint for trial in trials if trial.hint):
        ui.hint(hint)
    return 0 if result.status == "ok" else 1


def _notes(result: JobResult) -> Iterator[str]:
    if result.simulated:
        models = ", ".join(result.simulated)
        yield f"simulated: {models} did not compute, the CPU did; these are no figures of a GPU"
    if gpu := result.metrics.get("emulated"):
        yield f"emulated compute: ranks slept as long as a {gpu} computes; no figures of a GPU"
    if result.not_judged:
        yield f"not judged in so small a run: {', '.join(result.not_judged)}"
    if differ := _undeclared(result):
        yield f"metrics.json is not as job.yml says: {differ}"


def show_figures(
    ui: UI, figures: Mapping[str, object], metrics: Mapping[str, Metric], devices: Sequence[str]
) -> None:
    """Print figures of one value with their units, and whether they mix devices."""
    for name, value in figures.items():
        unit = metrics[name].unit if name in metrics else ""
        if isinstance(value, Summary):
            ui.say(f"  {one_line(name)} = {summarized(value, unit)}")
        elif isinstance(value, int | float | str):
            ui.say(f"  {one_line(name)} = {formatted(value, unit)}")
    if mixed := mixed_devices(devices):
        ui.say(f"  {one_line(mixed)}")


def _show_tables(ui: UI, result: JobResult) -> None:
    for name, rows in result.metrics.items():
        described = result.described.get(name, Metric(unit=""))
        columns = described.columns
        if columns and isinstance(rows, list) and rows:
            ui.say(f"{name}:")
            ui.table(
                [c.removesuffix("_bps").removesuffix("_s").replace("_", " ") for c in columns],
                [[_cell(row, *column) for column in columns.items()] for row in rows],
            )
            if described.note:
                ui.say(described.note)


def _undeclared(result: JobResult) -> str:
    reports = [trial.metrics for trial in result.trials or [result] if trial.metrics]
    if not reports or not result.described:
        return ""
    extra = dict.fromkeys(name for each in reports for name in each if name not in result.described)
    lacking = [name for name in result.described if any(name not in each for each in reports)]
    parts = {"not declared": list(extra), "not reported": lacking}
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in parts.items() if names)


def _cell(row: Any, key: str, unit: str) -> str:
    value = row.get(key) if isinstance(row, dict) else None
    return formatted(value, unit) if isinstance(value, int | float | str) else ""


def _size(result: JobResult) -> str:
    if not result.trials:
        return f"world size {result.world_size}"
    done = sum(trial.status == "ok" for trial in result.trials)
    return f"{done} of {len(result.trials)} trials of world size {result.world_size} each"

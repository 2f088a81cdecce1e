"""The result of a run: its metrics, and its failures to meet the conditions of `job.yml`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter

from gpubed.core import reading
from gpubed.core.files import without_nan
from gpubed.core.reading import Unreadable
from gpubed.jobs import curves
from gpubed.jobs.jobfile import Job, Metric
from gpubed.jobs.runs import record
from gpubed.jobs.runs.record import Cause
from gpubed.jobs.trials import DEVICE, Summary, is_number, summarize

_LARGEST = 2**20  # bytes of metrics.json
_POINTS = 1000  # of a curve in MLflow
_Whole = Annotated[int, Field(ge=-(2**63), lt=2**64)]
# Keys of the document of `run --json`, which metrics must not replace.
_OWN = {"schema", "exit_code", "message", "hint", "trials", "statistics", "left_out"}
_METRICS = TypeAdapter(dict[str, bool | _Whole | float | str | list[Any] | dict[str, Any] | None])


@dataclass
class JobResult:
    """The result of a run; `failures` says why `status` is not `ok`.

    Attributes:
        world_size: Ranks of the run, or of each of its trials.
        metrics: Metrics of the run, or means over its trials that did not fail.
        trials: Results of the single runs, if there were several: repetitions one after another,
            or trials at the same time on testbeds that run jobs.
        statistics: Each metric over the trials that did not fail.
        left_out: Why trials failed that were not needed (`min` of their group), by name.
        simulated: GPU models that nodes of the run simulate.
        image: Id of the ranks' container image; empty without one.
        described: Descriptions of the metrics in `job.yml`.
        not_judged: Metrics whose conditions do not apply, because the run is too small.
        cause: Why it failed; None if it did not.
        last_words: Last lines on stderr of the rank that failed first, if known.
        hint: How to repair the failure, if known.
        shared_with: Runs on its nodes at the same time.
        completed: Whether the job ended by itself with exit code 0; its metrics may be wrong.
        interrupted: Whether gpubed ended it although it was healthy; `failures` has the reason.
        cut_off: Whether it ended because the connection to the head or a rank's node was lost.
    """

    job: str
    run_dir: str
    world_size: int
    metrics: dict[str, Any] = field(default_factory=dict)
    trials: list[JobResult] = field(default_factory=list)
    statistics: dict[str, Summary] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    simulated: tuple[str, ...] = ()
    image: str = ""
    described: dict[str, Metric] = field(default_factory=dict)
    not_judged: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    cause: Cause | None = None
    last_words: list[str] = field(default_factory=list)
    hint: str = ""
    shared_with: list[str] = field(default_factory=list)
    completed: bool = False
    interrupted: bool = False
    cut_off: bool = False
    seconds: float = 0.0

    @property
    def run_id(self) -> str:
        """The run's name, as `gpubed runs` lists it."""
        return Path(self.run_dir).name

    @property
    def to_see(self) -> str:
        """The path of the run's output, as the end of a failure message."""
        return f"; see {Path(self.run_dir) / record.OUTPUT}"

    @property
    def devices(self) -> list[str]:
        """Devices that its job reports, each once; several if trials differ."""
        if self.trials:
            good = (trial for trial in self.trials if not trial.failures)
            return sorted({device for trial in good for device in trial.devices})
        device = self.metrics.get(DEVICE)
        return [device] if isinstance(device, str) and device else []

    @property
    def status(self) -> Literal["ok", "failed", "interrupted"]:
        """`interrupted` if gpubed itself ended the run, else `ok` or `failed`."""
        if self.interrupted:
            return "interrupted"
        return "failed" if self.failures else "ok"

    def rows(self) -> Iterator[tuple[str, float, float]]:
        """Yield name, step and value of each metric that is a number, and of each curve."""
        found = curves.read(Path(self.run_dir))
        for name, points in found.items():
            yield from ((name, *point) for point in curves.thinned(points, _POINTS))
        for name, value in self.metrics.items():
            values = value if isinstance(value, list) else [value]
            if name not in found:
                numbers = ((step, one) for step, one in enumerate(values) if is_number(one))
                yield from ((name, step, one) for step, one in numbers)

    def document(self) -> dict[str, Any]:
        """Return the document of `run --json`.

        Its top level also has the metrics, except those whose names gpubed uses itself.
        """
        own = {
            "job": self.job,
            "status": self.status,
            "run_id": self.run_id,
            "run_dir": self.run_dir,
            "world_size": self.world_size,
            "seconds": round(self.seconds, 2),
            "failures": self.failures,
            "cause": self.cause and self.cause.model_dump(mode="json"),
            "simulated": bool(self.simulated),
            "not_judged": self.not_judged,
            "shared_with": self.shared_with,
            "devices": self.devices,
            "metrics": self.metrics,
        }
        if self.trials:
            own["trials"] = [trial.document() for trial in self.trials]
            own["statistics"] = {
                name: summary.document() for name, summary in self.statistics.items()
            }
        return {name: one for name, one in self.metrics.items() if name not in _OWN} | own


def repeated(results: list[JobResult]) -> JobResult:
    """Combine repetitions of a run: metrics are means over those that did not fail."""
    whole = together(results)
    whole.failures = [f"{one.run_id}: {why}" for one in results for why in one.failures]
    return whole


def together(trials: list[JobResult]) -> JobResult:
    """Combine trials of one job; the caller decides whether they failed as a whole."""
    first = trials[0]
    whole = JobResult(first.job, first.run_dir, first.world_size, trials=trials)
    whole.statistics = summarize([trial.metrics for trial in trials if not trial.failures])
    whole.metrics = {name: summary.mean for name, summary in whole.statistics.items()}
    whole.cause = next((trial.cause for trial in trials if trial.cause), None)
    whole.shared_with = list(dict.fromkeys(run for trial in trials for run in trial.shared_with))
    whole.not_judged = list(dict.fromkeys(m for trial in trials for m in trial.not_judged))
    whole.simulated = tuple(sorted({model for trial in trials for model in trial.simulated}))
    whole.described = first.described
    whole.seconds = sum(trial.seconds for trial in trials)
    return whole


def judge(result: JobResult, job: Job, values: Mapping[str, Any]) -> None:
    """Read a run's metrics, and add a failure for each fault; a failed run may lack metrics."""
    here = Path(result.run_dir)
    try:
        result.metrics = reading.file(here / "metrics.json", limit=_LARGEST).json(_METRICS)
    except reading.Missing:
        result.metrics = {name: one[-1][1] for name, one in curves.read(here).items()}
        if job.metrics and not (result.failures or result.metrics):
            result.failures.append(f"the job wrote no metrics.json; see {here / record.OUTPUT}")
        if not result.metrics:
            return
    except Unreadable as error:
        result.failures.append(error.message)
        return
    odd = job.odd(result.metrics)
    result.failures += odd.values()
    # Names with control characters could fake lines of gpubed's output.
    result.metrics = without_nan({k: v for k, v in result.metrics.items() if k.isprintable()})
    due = [condition for condition in job.sanity if condition.applies(result.metrics, values)]
    broken = (
        condition.broken_by(result.metrics, result.world_size)
        for condition in due
        if condition.metric not in odd
    )
    result.failures += [reason for reason in broken if reason]
    result.not_judged = [one.metric for one in job.sanity if one.is_beyond(values)]

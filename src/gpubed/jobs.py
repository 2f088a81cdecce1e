"""Runs a job on a cluster: `jobs/<name>/` → ranks on all nodes → results.

A job writes `metrics.json`; nothing is ever parsed out of what it prints. Whether
it did what was asked (`sanity`) is kept apart from how fast it was (`metrics`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from gpubed import images, registry
from gpubed.allocation import Allocation
from gpubed.errors import UsageError
from gpubed.launchers.base import Launch
from gpubed.paths import ClusterPaths
from gpubed.plan import ClusterPlan
from gpubed.ssh import SSH

_IN_CONTAINER = "gpubed-container"  # role docker puts it on the nodes


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Argument(_Model):
    """An argument of a job; reaches the program as `--name value` unless it is null."""

    default: str | int | float | bool | None
    help: str


class Metric(_Model):
    """A figure that a job reports."""

    unit: str
    help: str = ""


class Equality(_Model):
    """A metric and the value that it has."""

    metric: str
    equals: str | int | float


class Condition(_Model):
    """What a metric must be for the run to count; `ranks` stands for the world size.

    A metric that the job reports as null did not apply; one that it leaves out is missing.

    Attributes:
        unless: Where this holds, the condition does not apply.
    """

    metric: str
    equals: str | int | float | None = None
    at_least: float | None = None
    at_most: float | None = None
    unless: Equality | None = None

    def broken_by(self, metrics: Mapping[str, Any], ranks: int) -> str:
        """Say how the metrics break the condition; empty when they do not."""
        if self.unless and metrics.get(self.unless.metric) == self.unless.equals:
            return ""
        value, wanted = metrics.get(self.metric), ranks if self.equals == "ranks" else self.equals
        if self.metric not in metrics:
            return f"{self.metric} was not reported"
        if value is None:
            return ""
        if wanted is not None and value != wanted:
            return f"{self.metric} is {value} instead of {wanted}"
        if self.at_least is not None and value < self.at_least:
            return f"{self.metric} is {value:.4g}, at least {self.at_least:g} is needed"
        if self.at_most is not None and value > self.at_most:
            return f"{self.metric} is {value:.4g}, at most {self.at_most:g} is allowed"
        return ""


class Job(_Model):
    """`job.yml`.

    Attributes:
        command: What each rank runs, in the run's folder.
        container: The image that ranks run in; None runs them on the nodes themselves.
        sanity: What must hold for the run to count, however fast it was.
    """

    contract: Literal["gpubed/job/1"] = Field(alias="schema")
    description: str
    launcher: str
    ranks: Literal["all"] = "all"
    command: tuple[str, ...]
    container: str | None = None
    arguments: dict[str, Argument] = {}
    metrics: dict[str, Metric] = {}
    sanity: tuple[Condition, ...] = ()


@dataclass
class JobResult:
    """What a run gave; `failures` says why `status` is not `ok`."""

    job: str
    run_dir: str
    world_size: int
    metrics: dict[str, Any] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def status(self) -> str:
        """`ok`, or `failed`."""
        return "failed" if self.failures else "ok"

    def document(self) -> dict[str, Any]:
        """Return the document of `run --json`; metrics also stand at its top level."""
        own = {
            "job": self.job,
            "status": self.status,
            "run_dir": self.run_dir,
            "world_size": self.world_size,
            "seconds": round(self.seconds, 2),
            "failures": self.failures,
            "metrics": self.metrics,
        }
        return {**self.metrics, **own}


def parse_settings(settings: Iterable[str]) -> dict[str, str]:
    """Read `name=value` words.

    Raises:
        UsageError: A word has no `=`.
    """
    pairs = [word.partition("=") for word in settings]
    for name, equals, _ in pairs:
        if not (name and equals):
            raise UsageError(f"--set {name!r} is not NAME=VALUE", "--set epochs=20")
    return {name.replace("-", "_"): value for name, _, value in pairs}


def load(name: str) -> Job:
    """Return a job's description.

    Raises:
        UsageError: There is no such job.
    """
    text = (registry.job_folder(name) / "job.yml").read_text(encoding="utf-8")
    return Job.model_validate(yaml.safe_load(text))


def run(
    cluster: ClusterPaths,
    plan: ClusterPlan,
    allocation: Allocation,
    name: str,
    settings: Mapping[str, str],
    on_output: Callable[[str], None] = lambda _line: None,
    container: str | None = None,
    launcher: str | None = None,
) -> JobResult:
    """Run a job over all nodes and bring its folder back.

    Args:
        settings: Arguments that differ from the job's defaults.
        on_output: Called with each line that the job prints.
        container: The image that ranks run in, instead of the one that the job names.
        launcher: Another one than the job names.

    Raises:
        UsageError: There is no such job, argument or launcher, or the cluster has no Docker.
        GpubedError: A node could not be reached, or lacks the image.
    """
    job = load(name)
    words = _words(name, job, settings)
    image = container or job.container
    if image:
        images.require(cluster, plan, allocation, image)
        words = [_IN_CONTAINER, image, *words]
    chosen = registry.launcher(launcher or job.launcher)
    ranks = sum(node.slots for node in allocation.nodes)
    run_id = time.strftime(f"%Y%m%d-%H%M%S-{name}")
    here = cluster.runs / run_id
    here.mkdir(parents=True)
    started = time.monotonic()
    with SSH(allocation.head, cluster) as head, (here / "output.log").open("w") as log:

        def keep(line: str) -> None:
            log.write(line + "\n")
            on_output(line)

        launch = _prepare(head, plan, name, run_id, ranks, words)
        _describe(head, launch.folder, allocation)
        code = chosen.run(cluster, allocation, launch, keep)
        head.get(launch.folder, here)
    result = JobResult(name, str(here), ranks, seconds=time.monotonic() - started)
    result.units = {metric: described.unit for metric, described in job.metrics.items()}
    _judge(result, job, here, code)
    return result


def _words(name: str, job: Job, settings: Mapping[str, str]) -> list[str]:
    for given in settings:
        if given not in job.arguments:
            known = ", ".join(job.arguments) or "none"
            raise UsageError(f"job {name} has no argument {given!r}", f"arguments: {known}")
    values = {key: argument.default for key, argument in job.arguments.items()} | dict(settings)
    words = list(job.command)
    for key, value in values.items():
        if value is not None:
            words += [f"--{key.replace('_', '-')}", str(value)]
    return words


def _prepare(
    head: SSH, plan: ClusterPlan, name: str, run_id: str, ranks: int, words: list[str]
) -> Launch:
    storage = plan.spec.storage
    folder = f"{storage.shared.path}/runs/{run_id}"
    head.put(registry.job_folder(name), folder)
    environment = {
        "GPUBED_RUN_DIR": folder,
        "GPUBED_SHARED": storage.shared.path,
        "GPUBED_DATASETS": storage.datasets,
        "GPUBED_SCRATCH": storage.scratch.path if storage.scratch else "",
    }
    return Launch(folder, words, environment, ranks)


def _describe(head: SSH, folder: str, allocation: Allocation) -> None:
    """Tell the job about the nodes it runs on, as `cluster.json` and `hostfile` in its folder."""
    head.write(f"{folder}/cluster.json", allocation.model_dump_json())
    slots = "".join(f"{node.name} slots={node.slots}\n" for node in allocation.nodes)
    head.write(f"{folder}/hostfile", slots)


def _judge(result: JobResult, job: Job, here: Path, code: int) -> None:
    if code:
        result.failures.append(f"the job ended with exit code {code}; see {here / 'output.log'}")
    path = here / "metrics.json"
    if not path.is_file():
        result.failures.append(f"the job wrote no metrics.json; see {here / 'output.log'}")
        return
    result.metrics = json.loads(path.read_text(encoding="utf-8"))
    broken = (condition.broken_by(result.metrics, result.world_size) for condition in job.sanity)
    result.failures += [reason for reason in broken if reason]

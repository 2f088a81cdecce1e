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
from jinja2 import StrictUndefined
from jinja2.nativetypes import NativeEnvironment
from jinja2.sandbox import SandboxedEnvironment
from pydantic import BaseModel, ConfigDict, Field

from gpubed import registry
from gpubed.allocation import Allocation
from gpubed.errors import GpubedError, UsageError
from gpubed.launchers.base import Launch
from gpubed.paths import ClusterPaths
from gpubed.plan import ClusterPlan
from gpubed.ssh import SSH


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Argument(_Model):
    """An argument of a job; reaches the program as `--name value`."""

    default: str | int | float | bool
    help: str


class Metric(_Model):
    """A figure that a job reports."""

    unit: str
    help: str = ""


class Job(_Model):
    """`job.yml`.

    Attributes:
        command: The program, started by the cluster's Python in the run folder.
        sanity: Expressions over `metrics`, `ranks` and `nodes` that must hold.
    """

    contract: Literal["gpubed/job/1"] = Field(alias="schema")
    description: str
    launcher: str = "ssh"
    command: str = "main.py"
    transport: Literal["gloo", "mpi"] = "gloo"
    arguments: dict[str, Argument] = {}
    metrics: dict[str, Metric] = {}
    sanity: tuple[str, ...] = ()


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
) -> JobResult:
    """Run a job over all nodes and bring its folder back.

    Args:
        settings: Arguments that differ from the job's defaults.
        on_output: Called with each line that the job prints.

    Raises:
        UsageError: There is no such job or argument.
        GpubedError: The head could not be reached.
    """
    job = load(name)
    ranks = sum(node.slots for node in allocation.nodes)
    run_id = time.strftime(f"%Y%m%d-%H%M%S-{name}")
    here = cluster.runs / run_id
    here.mkdir(parents=True)
    started = time.monotonic()
    with SSH(allocation.head, cluster) as head, (here / "output.log").open("w") as log:

        def keep(line: str) -> None:
            log.write(line + "\n")
            on_output(line)

        launch = _prepare(head, plan, job, name, run_id, ranks, _words(name, job, settings))
        _describe(head, launch.folder, allocation)
        code = registry.launcher(job.launcher).run(cluster, allocation, launch, keep)
        head.get(launch.folder, here)
    result = JobResult(name, str(here), ranks, seconds=time.monotonic() - started)
    result.units = {metric: described.unit for metric, described in job.metrics.items()}
    _judge(result, job, here, code, len(allocation.nodes))
    return result


def _words(name: str, job: Job, settings: Mapping[str, str]) -> list[str]:
    for given in settings:
        if given not in job.arguments:
            known = ", ".join(job.arguments) or "none"
            raise UsageError(f"job {name} has no argument {given!r}", f"arguments: {known}")
    values = {key: argument.default for key, argument in job.arguments.items()} | dict(settings)
    return [w for key, value in values.items() for w in _word(key, str(value), job.arguments[key])]


def _word(key: str, value: str, argument: Argument) -> list[str]:
    option = f"--{key.replace('_', '-')}"
    if isinstance(argument.default, bool):
        return [option] if value.lower() in ("true", "yes", "1") else []
    return [option, value]


def _prepare(
    head: SSH, plan: ClusterPlan, job: Job, name: str, run_id: str, ranks: int, words: list[str]
) -> Launch:
    shared = plan.spec.storage.shared.path
    folder = f"{shared}/runs/{run_id}"
    head.run("mkdir -p %s", folder)
    head.put(registry.job_folder(name), folder)
    return Launch(
        folder=folder,
        command=[job.command, *words],
        environment={"GPUBED_RUN_DIR": folder},
        ranks=ranks,
        transport=job.transport,
        shared=shared,
    )


def _describe(head: SSH, folder: str, allocation: Allocation) -> None:
    """Tell the job about the cluster it runs on, as `cluster.json` in its folder."""
    head.write(f"{folder}/cluster.json", allocation.model_dump_json())


def _judge(result: JobResult, job: Job, here: Path, code: int, nodes: int) -> None:
    if code:
        result.failures.append(f"the job ended with exit code {code}; see {here / 'output.log'}")
    path = here / "metrics.json"
    if not path.is_file():
        result.failures.append(f"the job wrote no metrics.json; see {here / 'output.log'}")
        return
    result.metrics = json.loads(path.read_text(encoding="utf-8"))
    scope = {"metrics": result.metrics, "ranks": result.world_size, "nodes": nodes}
    for condition in job.sanity:
        if not _holds(condition, scope):
            result.failures.append(f"this does not hold: {condition}")


class _Expressions(SandboxedEnvironment, NativeEnvironment):
    """Evaluates conditions of a job, which may come from elsewhere, without letting them act."""


def _holds(condition: str, scope: Mapping[str, Any]) -> bool:
    expression = _Expressions(undefined=StrictUndefined).compile_expression(
        condition, undefined_to_none=False
    )
    try:
        return bool(expression(**scope))
    except Exception as error:
        raise GpubedError(
            f"the condition {condition!r} of the job cannot be evaluated: {error}"
        ) from error

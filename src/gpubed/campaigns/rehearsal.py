"""Rehearses a training: the GPUs' compute is emulated, its communication is real.

A rehearsal is a campaign of job imagenet with its argument `emulate`. Where the nodes' machines
cannot drive the links' rate, all times of a point are stretched by one factor, and the links' rate
is divided by it, so that efficiency stays what it is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, PositiveFloat, PositiveInt

from gpubed.campaigns import matrix
from gpubed.campaigns.drive import Bench
from gpubed.campaigns.file import NODES, RATE, Campaign, Source
from gpubed.campaigns.matrix import Point
from gpubed.campaigns.predictions import Foretold
from gpubed.core import files, reading, yaml_lines
from gpubed.core.errors import GpubedError, UsageError
from gpubed.jobs import execution, jobfile
from gpubed.jobs.execution import Terms
from gpubed.jobs.runs.record import Choice, Request
from gpubed.nodes import link_rates
from gpubed.nodes.allocation import Allocation, Cluster
from gpubed.prediction import model, probed, rates
from gpubed.prediction.model import Calibration, Setup
from gpubed.prediction.rates import Rate
from gpubed.prediction.shapes import shape
from gpubed.testbeds import registry

JOB = "imagenet"
FILE = "host.json"
_GOODPUT = 0.94  # TCP payload's share of a layer-2 rate at an MTU of 1500
# Of what processors were measured to drive: with more, ranks that wait for a processor are late.
_SHARE = 0.6
_WARM_UP = 2
_START_S = 15.0  # to start and collect the ranks of a point
_OWN = 1.03  # what a rank that sleeps is off by
_CYCLE_MS = 1.0  # Horovod's default


class Host(BaseModel):
    """What the nodes' machines can drive: the step of an emulated GPU that takes no time.

    Attributes:
        nodes: Nodes that averaged.
        step_s: Seconds to average the gradients of a step.
        gradient_bytes: Their size.
        link_bps: Rate of the links meanwhile, in bit/s.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    nodes: PositiveInt
    step_s: PositiveFloat
    gradient_bytes: PositiveFloat
    link_bps: PositiveFloat

    @property
    def node_bps(self) -> float:
        """Rate of each node's link that the machines can drive, at that number of nodes."""
        least_s = 2 * (self.nodes - 1) / self.nodes * 8 * self.gradient_bytes
        least_s /= _GOODPUT * self.link_bps
        used = least_s / self.step_s
        return self.link_bps * (1.0 if used > 0.9 else _SHARE * used)

    def factor(self, nodes: int, link_bps: float, *, one_host: bool) -> float:
        """Return the factor at which nodes can stand for links of a rate, rounded up to 0.1."""
        if nodes == 1:
            return 1.0
        # Nodes of one machine share what it can drive.
        drives = self.node_bps * (self.nodes / nodes if one_host else 1)
        return max(1.0, math.ceil(10 * link_bps / min(drives, self.link_bps) - 1e-6) / 10)


@dataclass(frozen=True)
class Asked:
    """The training and the links that a rehearsal emulates.

    Attributes:
        links: Rates of nodes' links, in bit/s.
        rate: images/s of one GPU; None takes that of the table of rates.
        steps: Timed steps of a point.
        settings: Further arguments of job imagenet.
        factor: The least factor of time.
    """

    model: str
    gpu: str
    batches: tuple[int, ...]
    nodes: tuple[int, ...]
    links: tuple[int, ...]
    precision: str = "fp32"
    framework: str = "horovod"
    rate: float | None = None
    steps: int = 10
    settings: Mapping[str, str] = field(default_factory=dict)
    factor: float = 1.0

    def setup(self, nodes: int, batch: int, link_bps: float) -> Setup:
        """Return the setup of a point, to predict it."""
        fusion = self.settings.get("fusion_mb")
        cycle = self.settings.get("cycle_ms")
        return Setup(
            model=self.model,
            gpu=self.gpu,
            nodes=nodes,
            gpus_per_node=1,
            batch=batch,
            link_bps=link_bps,
            precision=self.precision,
            rate=self.rate_of(batch).images_per_s,
            framework=self.framework,
            collectives="gloo",  # which averages between the nodes of a rehearsal
            fusion_bytes=None if fusion is None else float(fusion) * model.MIB,
            cycle_s=None if cycle is None else float(cycle) / 1000,
            compression=self.settings.get("compression", "none"),
        )

    def rate_of(self, batch: int) -> Rate:
        """Return the rate of one GPU.

        Raises:
            UsageError: The table of rates has no such GPU, or that of models no such model.
        """
        if self.rate:
            return Rate(self.rate, 0.0, "given")
        own = shape(self.model)
        return rates.lookup(self.gpu, self.model, own, batch, self.precision)

    def campaign(self) -> dict[str, Any]:
        """Return the campaign file's content."""
        alone = [{NODES: 1, RATE: link_rates.compact(bps)} for bps in self.links[1:]]
        return {
            "schema": "gpubed/campaign-file/1",
            "description": f"Emulated compute of {self.gpu}: rehearses {self.model}",
            "job": JOB,
            "factors": {
                "emulate": [self.gpu],
                "model": [self.model],
                RATE: [link_rates.compact(bps) for bps in self.links],
                "batch_size": list(self.batches),
                NODES: list(self.nodes),
            },
            "settings": {
                "framework": self.framework,
                "steps": self.steps + _WARM_UP,
                "warmup_steps": _WARM_UP,
                **self.settings,
            },
            # One node uses no link.
            **({"exclude": alone} if alone and 1 in self.nodes else {}),
        }


def source(asked: Asked, folder: Path) -> Source:
    """Return the campaign of a rehearsal, whose name tells it from other questions."""
    content = yaml.safe_dump(asked.campaign(), sort_keys=False).encode()
    digest = hashlib.sha256(content + repr((asked.rate, asked.factor)).encode()).hexdigest()[:6]
    name = f"rehearsal-{asked.model}-{asked.gpu}-{digest}".replace(" ", "-")
    what = f"the rehearsal of {asked.model}"
    campaign = reading.reply(content, what).yaml(Campaign)
    return Source(folder / name, name, campaign, yaml_lines.parse(content))


class Rehearsal(Bench):
    """A campaign whose points are stretched in time, each by the factor that its nodes need."""

    def __init__(self, cluster: Cluster, asked: Asked, command: str) -> None:
        self.asked = asked
        for batch in asked.batches:  # what cannot be predicted is refused before it is measured
            model.predict(asked.setup(1, batch, asked.links[0]))
        found = source(asked, cluster.paths.campaigns)
        super().__init__(cluster, found, jobfile.load(JOB), command)

    def prepare(self, tell: Callable[[str], None], *, new: bool) -> None:
        """Measure what the machines can drive, unless the rehearsal has begun, and fit the points.

        Raises:
            GpubedError: The job failed.
        """
        path = self.folder.path / FILE
        if path.exists() and not new:
            self.host = reading.file(path, "--new begins again").json(Host)
        else:
            tell("what can the machines drive?")
            self.host = self._measured_host()
        self.points[:] = [self._stretched(point) for point in self.points]

    def begin(self, *, new: bool, again_failed: bool) -> list[str]:
        """See `Bench`."""
        said = super().begin(new=new, again_failed=again_failed)
        files.write(self.folder.path / FILE, self.host.model_dump_json(indent=2).encode())
        return said

    def _require_room(self, usable: Allocation) -> None:
        matrix.require_room(self.source, self.cluster.allocation, usable, without=(RATE,))

    def _foretold(self) -> dict[str, Foretold]:
        return dict(self._predicted())

    def _predicted(self) -> Iterator[tuple[str, Foretold]]:
        known = probed.read(self.cluster.paths, self.cluster.allocation.uuid)
        for point in self.points:
            link, steps = _link(point), self.asked.steps + _WARM_UP
            setup = self.asked.setup(point.nodes or 1, _batch(point), link)
            calibration = known and known.calibration("tcp", link)
            # What slows GPUs down, and makes one slower than another, is not emulated.
            calibration = replace(
                calibration or Calibration(), spread=0.0, overhead=0.0, slowdown=0.0
            )
            told = model.predict(setup, calibration)
            rate = told.images_per_s
            bounds = {"low": min(told.low, rate / _OWN), "high": max(told.high, rate * _OWN)}
            seconds = _START_S + steps * told.step_s * float(point.arguments["time_factor"])
            source = {"rate_source": self.asked.rate_of(_batch(point)).source}
            yield point.id, Foretold(**vars(told) | bounds | source, seconds=seconds)

    def _stretched(self, point: Point) -> Point:
        nodes, link = point.nodes or 1, _link(point)
        one_host = self.cluster.allocation.one_host
        declared = int(self.host.link_bps)
        factor = max(self.host.factor(nodes, link, one_host=one_host), self.asked.factor)
        backend = registry.backend(self.cluster.allocation.backend)
        if nodes > 1 and not backend.shapes_on_nodes:
            if link < declared:
                raise UsageError(
                    f"{backend.name} holds its links to {link_rates.compact(declared)}, which "
                    f"cannot stand for {link_rates.compact(int(link))}",
                    f"--link {link_rates.compact(declared)} or more",
                )
            factor = link / declared
        own = {
            "emulated_rate": repr(self.asked.rate_of(_batch(point)).images_per_s),
            "time_factor": repr(factor),
        }
        if self.asked.framework == "horovod":
            cycle = float(self.asked.settings.get("cycle_ms", _CYCLE_MS))
            own["cycle_ms"] = repr(cycle * factor)
        real = declared if nodes == 1 else min(declared, round(link / factor))
        return replace(point, arguments={**point.arguments, **own}, link_bps=real)

    def _measured_host(self) -> Host:
        allocation = self.cluster.allocation
        network, most = allocation.experiment, max(self.asked.nodes)
        if network is None or network.rate_bps is None:
            raise UsageError(
                f"{self.cluster.name} has no experiment network with a rate",
                f"declare networks.experiment.rate in cluster.yml: gpubed up {self.cluster.name}",
            )
        if most < 2:
            declared = float(network.rate_bps)
            return Host(nodes=1, step_s=1, gradient_bytes=1, link_bps=declared)
        given = {"model": self.asked.model, "emulate": self.asked.gpu, "batch_size": "1"}
        given |= {"emulated_rate": "1e9", "steps": "5", "warmup_steps": str(_WARM_UP)}
        given |= {"framework": self.asked.framework}
        request = Request(job=JOB, settings=given, choice=Choice(nodes=most))
        terms = Terms(by="rehearse", alone=True)
        result = execution.run(self.cluster, request, terms=terms)
        if result.failures:
            raise GpubedError(
                f"job {JOB} failed: {result.failures[0]}",
                f"gpubed runs {self.cluster.name} show {result.run_id}",
            )
        return Host(
            nodes=most,
            step_s=result.metrics["step_s"],
            gradient_bytes=result.metrics["gradient_bytes"],
            link_bps=network.rate_bps,
        )


def _batch(point: Point) -> int:
    return int(point.settings["batch_size"])


def _link(point: Point) -> float:
    return float(link_rates.parse(point.settings[RATE]))

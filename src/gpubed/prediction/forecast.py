"""The predicted scaling of the training that a specification names under `experiment`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.core.units import format_rate
from gpubed.hardware import facts
from gpubed.nodes import allocation
from gpubed.prediction.model import Setup
from gpubed.prediction.questions import Answer, Questions, Row, Work, figure
from gpubed.spec.plan import ClusterPlan
from gpubed.spec.sections import Experiment
from gpubed.testbeds import registry
from gpubed.testbeds.base import Offer

# Chips of one product each, by NVIDIA's code name, as a host without a driver shows them.
_CHIPS = {"gk210": "k80", "gp100": "p100", "gv100": "v100", "ga100": "a100"}
_BRANDS = {"nvidia", "tesla", "geforce", "gtx", "rtx", "quadro", "titan"}
_BRANDS |= {"kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper"}
COLUMNS = ("nodes", "images/s", "90 % interval", "efficiency", "hours", "node-hours")


@dataclass(frozen=True)
class Forecast:
    """The predicted scaling of an experiment, from one node to all.

    Attributes:
        rows: Predictions of 1, 2, 4, … nodes; the last one is that of the whole plan.
        answer: What reaches the target, or what the whole training costs.
        cheaper: Fewer nodes that do the same for fewer node-hours; None if none do.
    """

    experiment: Experiment
    rows: tuple[Row, ...]
    answer: Answer
    cheaper: Row | None

    @property
    def words(self) -> str:
        """The setup in words."""
        setup = self.rows[-1].setup
        link = f" and {format_rate(setup.link_bps)}" if setup.nodes > 1 else ""
        each = f"{setup.gpus_per_node} x {setup.gpu} per node{link}"
        return f"{setup.model}, batch {setup.batch} per rank, {setup.precision}, on {each}"

    def table(self) -> list[tuple[str, ...]]:
        """Return a line of text for each row, under `COLUMNS`."""
        return [
            (
                str(row.setup.nodes),
                figure(row.prediction.images_per_s),
                f"{figure(row.prediction.low)} to {figure(row.prediction.high)}",
                f"{row.prediction.efficiency:.0%}",
                figure(row.hours),
                figure(row.node_hours),
            )
            for row in self.rows
        ]

    def lines(self) -> list[str]:
        """Return the answer as text, and what would be cheaper."""
        if self.cheaper is None:
            return self.answer.lines()
        row, whole = self.cheaper, self.rows[-1]
        less = whole.node_hours - row.node_hours
        reached = ", which reach the target, too" if self.experiment.target else ""
        return [
            *self.answer.lines(),
            f"  cheaper: {row.setup.nodes} node(s){reached}: {figure(less)} node-hours less, "
            f"{figure(row.hours)} h in place of {figure(whole.hours)} h",
        ]

    def document(self) -> dict[str, Any]:
        """Return the forecast for JSON."""
        whole, target = self.rows[-1], self.experiment.target
        return {
            **whole.document(),
            "target": target,
            "reaches_target": None if not target else whole.prediction.images_per_s >= target,
            "scaling": [row.document() for row in self.rows],
            "answer": self.answer.document(),
            "cheaper": self.cheaper and self.cheaper.document(),
        }


def of_plan(plan: ClusterPlan, paths: ClusterPaths) -> Forecast | None:
    """Predict the experiment of a plan; None if it names none.

    Raises:
        UsageError: The GPU, the link or the model is not known, or nodes differ.
    """
    experiment = plan.spec.experiment
    if experiment is None:
        return None
    asked = questions(experiment, setup(plan, paths))
    rows = tuple(asked.scaling())
    whole, target = rows[-1], experiment.target
    if target:
        link = whole.setup.link_bps
        answer = asked.reach(target, [link])
        fewer = [row for row in answer.rows if row.prediction.images_per_s >= target]
    else:
        answer = asked.cost()
        fewer = [asked.row(nodes=max(1, whole.setup.nodes // 2))]
    cheaper = next((row for row in fewer if row.node_hours < 0.95 * whole.node_hours), None)
    if cheaper and cheaper.setup.nodes >= whole.setup.nodes:
        cheaper = None
    return Forecast(experiment, rows, answer, cheaper)


def questions(experiment: Experiment, of: Setup) -> Questions:
    """Return the questions that an experiment asks about a setup."""
    return Questions(of, Work(experiment.epochs, experiment.dataset_size))


def setup(plan: ClusterPlan, paths: ClusterPaths) -> Setup:
    """Return the setup that a plan and its experiment describe."""
    experiment = plan.spec.experiment
    assert experiment  # noqa: S101  # the caller has looked
    found = _shape(plan, experiment)
    if found.nodes > 1 and not found.link_bps:
        why = "the rate of the nodes' links is not known"
        raise UsageError(why, "declare networks.experiment.rate, or experiment.link")
    return replace(found, gpu=experiment.gpu or _gpu(plan, paths))


def of_offers(plan: ClusterPlan, experiment: Experiment, offers: Iterable[Offer]) -> dict[str, Row]:
    """Predict an experiment on the free machines of each offer, as many as the plan has at most.

    Left out are offers whose GPU the testbed does not name, or has no known rate. Where the links'
    rate is not known, one machine is predicted.
    """
    like, found = _shape(plan, experiment), dict[str, Row]()
    for offer in offers:
        nodes = min(offer.free or 0, like.nodes if like.link_bps else 1)
        rows = []
        for title in filter(None, offer.gpu_model.split(", ")) if nodes else ():
            here = replace(like, gpu=gpu_named(title), nodes=nodes, gpus_per_node=offer.gpus or 1)
            with suppress(GpubedError):
                rows.append(questions(experiment, here).row())
        if rows:  # of several models, the testbed may give any
            found[offer.name] = min(rows, key=lambda row: row.prediction.images_per_s)
    return found


def _shape(plan: ClusterPlan, experiment: Experiment) -> Setup:
    """Return the setup of a plan, for any GPU; `link_bps` is 0 where the rate is not known."""
    network = plan.spec.networks.experiment
    computing = [node for node in plan.nodes if node.slots]
    ranks = sorted({node.slots for node in computing})
    if len(ranks) > 1:
        listed = " and ".join(map(str, ranks))
        raise UsageError(f"nodes differ: they have {listed} ranks", "give all as many GPUs")
    return Setup(
        model=experiment.model,
        gpu="",
        nodes=len(computing),
        gpus_per_node=ranks[0],
        batch=experiment.batch,
        link_bps=float((network.rate_bps if network else experiment.link) or 0),
        transport="rdma" if network and network.rdma else "tcp",
        precision=experiment.precision,
    )


def _gpu(plan: ClusterPlan, paths: ClusterPaths) -> str:
    """Return the GPU's name in the table of rates; `cpu` where the plan asks for none."""
    if not any(node.gpus for node in plan.nodes):
        return "cpu"
    titles = list(dict.fromkeys(_titles(plan, paths)))
    found = {name for title in titles if (name := gpu_named(title))}
    if len(found) == 1:
        return found.pop()
    told = f"{', '.join(titles)}" if titles else "nothing"
    raise UsageError(
        f"the GPU model is not known: the testbed tells {told}", "set experiment.gpu, such as v100"
    )


def _titles(plan: ClusterPlan, paths: ClusterPaths) -> Iterator[str]:
    """Yield what is known of the GPUs: simulated ones, the nodes' own, those of named offers."""
    if simulated := [node.simulate.model for node in plan.nodes if node.simulate]:
        yield from simulated
    elif paths.allocation.exists():
        granted = allocation.load(paths.allocation)
        for found in facts.of_cluster(paths.facts, granted).values():
            yield from (gpu.title for gpu in found.gpus)
    else:
        with suppress(GpubedError):  # some testbeds do not tell
            text = plan.spec.model_dump_json(serialize_as_any=True)
            for offer in registry.bound(plan.backend, paths).resources(plan.spec):
                if f'"{offer.name}"' in text and offer.gpu_model:
                    yield from offer.gpu_model.split(", ")


def gpu_named(title: str) -> str:
    """Return the short name of a GPU: `v100` for `Tesla V100-SXM2-16GB` or `Volta GV100`."""
    words = [word for word in re.findall(r"[a-z0-9]+", title.lower()) if word not in _BRANDS]
    name = "".join(words[:1])
    if words[1:] and words[1] in ("ti", "super"):
        name += words[1]
    return _CHIPS.get(name, name)

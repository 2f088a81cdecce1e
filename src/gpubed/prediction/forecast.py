"""The predicted scaling of the training that a specification names under `experiment`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.hardware import facts
from gpubed.nodes import allocation
from gpubed.prediction import rates
from gpubed.prediction.model import Setup
from gpubed.prediction.questions import Questions, Row
from gpubed.spec.plan import ClusterPlan
from gpubed.spec.sections import Experiment
from gpubed.testbeds import registry
from gpubed.testbeds.base import Offer

# Chips of one product each, by NVIDIA's code name, as a host without a driver shows them.
_CHIPS = {"gk210": "k80", "gp100": "p100", "gv100": "v100", "ga100": "a100"}


def of_plan(
    plan: ClusterPlan, paths: ClusterPaths, measured: Callable[[Setup], float | None]
) -> Questions | None:
    """Return the questions about a plan's experiment; None if it names none.

    Args:
        measured: Returns the images/s that one rank of a setup was measured to have, if any.

    Raises:
        UsageError: The GPU or the link is not known, or nodes differ.
    """
    experiment = plan.spec.experiment
    if experiment is None:
        return None
    asked = _asked(plan, experiment)
    if asked.setup.nodes > 1 and not asked.setup.link_bps:
        why = "the rate of the nodes' links is not known"
        raise UsageError(why, "declare networks.experiment.rate, or experiment.link")
    gpu = experiment.gpu or _gpu(plan, paths)
    setup = replace(asked.setup, gpu=gpu, library="gloo" if gpu == "cpu" else "nccl")
    rate = measured(setup)
    if gpu == "cpu" and rate is None:
        raise UsageError(
            "no run on one rank tells how fast the CPUs are",
            f"gpubed run {plan.cluster} imagenet --nodes 1 --set model={experiment.model} "
            f"--set batch_size={experiment.batch} measures it",
        )
    return replace(asked, setup=replace(setup, rate=rate))


def of_offers(plan: ClusterPlan, experiment: Experiment, offers: Iterable[Offer]) -> dict[str, Row]:
    """Predict an experiment on the free machines of each offer, as many as the plan has at most.

    Left out are offers whose GPU the testbed does not name, or has no known rate. Where the links'
    rate is not known, one machine is predicted.
    """
    asked, found = _asked(plan, experiment), dict[str, Row]()
    most = asked.setup.nodes if asked.setup.link_bps else 1
    for offer in offers:
        nodes, gpus, rows = min(offer.free or 0, most), offer.gpus or 1, list[Row]()
        for title in filter(None, offer.gpu_model.split(", ")) if nodes else ():
            with suppress(GpubedError):
                rows.append(asked.row(gpu=gpu_named(title), nodes=nodes, gpus_per_node=gpus))
        if rows:  # of several models, the testbed may give any
            found[offer.name] = min(rows, key=lambda row: row.rate)
    return found


def gpu_named(title: str) -> str:
    """Return a GPU's name in the table of rates: `v100` for `Tesla V100-SXM2-16GB`."""
    pcie = "-pcie" if "pcie" in title.lower() else ""
    return _CHIPS.get(title.lower().split()[-1]) or f"{rates.family(title)}{pcie}"


def _asked(plan: ClusterPlan, experiment: Experiment) -> Questions:
    """Return questions without a GPU; `link_bps` is 0 where the links' rate is not known."""
    network = plan.spec.networks.experiment
    computing = [node for node in plan.nodes if node.slots]
    ranks = sorted({node.slots for node in computing})
    if len(ranks) > 1:
        listed = " and ".join(map(str, ranks))
        raise UsageError(f"nodes differ: they have {listed} ranks", "give all as many GPUs")
    setup = Setup(
        model=experiment.model,
        gpu="",
        nodes=len(computing),
        gpus_per_node=ranks[0],
        batch=experiment.batch,
        link_bps=float((network.rate_bps if network else experiment.link) or 0),
        transport="rdma" if network and network.rdma else "tcp",
        precision=experiment.precision,
    )
    return Questions(setup, experiment.epochs, experiment.dataset_size)


def _gpu(plan: ClusterPlan, paths: ClusterPaths) -> str:
    """Return the GPU's name in the table of rates; `cpu` where the plan asks for none."""
    if not any(node.gpus for node in plan.nodes):
        return "cpu"
    titles = list(dict.fromkeys(_titles(plan, paths)))
    found = {gpu_named(title) for title in titles}
    if len(found) == 1:
        return found.pop()
    told = ", ".join(titles) or "nothing"
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

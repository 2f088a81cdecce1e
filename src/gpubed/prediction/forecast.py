"""The predicted scaling of the training that a specification names under `experiment`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace

from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.hardware import facts
from gpubed.nodes import allocation
from gpubed.prediction import probed, rates
from gpubed.prediction.model import Setup
from gpubed.prediction.questions import Answer, Questions, Row
from gpubed.spec.plan import ClusterPlan
from gpubed.spec.sections import Experiment
from gpubed.testbeds import registry
from gpubed.testbeds.base import Offer

# Chips of one product each, by NVIDIA's code name, as a host without a driver shows them.
_CHIPS = {"gk210": "k80", "gp100": "p100", "gv100": "v100", "ga100": "a100"}


def of_plan(
    plan: ClusterPlan, paths: ClusterPaths, measured: Callable[[Setup], float | None]
) -> tuple[list[Row], Answer | None]:
    """Return how a plan's experiment scales, and what it takes; nothing if it names none.

    `measured` returns the images/s that one rank of a setup was measured to have, if any.

    Raises:
        UsageError: The GPU or the link is not known, or nodes differ.
    """
    experiment = plan.spec.experiment
    if experiment is None:
        return [], None
    asked = _asked(plan, experiment)
    if asked.setup.nodes > 1 and not asked.setup.link_bps:
        why = "the rate of the nodes' links is not known"
        raise UsageError(why, "declare networks.experiment.rate, or experiment.link")
    gpu = experiment.gpu or _gpu(plan, paths)
    setup = replace(asked.setup, gpu=gpu)
    rate = measured(setup)
    if gpu == "cpu" and rate is None:
        own = f"--set model={experiment.model} --set batch_size={experiment.batch}"
        again = f"gpubed run {plan.cluster} imagenet --nodes 1 {own} measures it"
        raise UsageError("no run on one rank tells how fast the CPUs are", again)
    asked = replace(asked, setup=replace(setup, rate=rate))
    if paths.allocation.exists():
        probe = probed.read(paths, allocation.load(paths.allocation).uuid)
        at = (setup.transport, setup.link_bps)
        asked = replace(asked, calibration=probe.calibration(*at) if probe else None)
    target, link = experiment.target, setup.link_bps
    return asked.scaling(), asked.reach(target, [link]) if target else asked.cost()


def of_offers(plan: ClusterPlan, experiment: Experiment, offers: Iterable[Offer]) -> dict[str, Row]:
    """Predict an experiment on the free machines of each offer with a GPU of a known rate.

    Of as many as the plan has, at most; of one where the links' rate is not known.
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
    return _CHIPS.get(title.lower().rpartition(" ")[2]) or f"{rates.family(title)}{pcie}"


def _asked(plan: ClusterPlan, experiment: Experiment) -> Questions:
    """Return questions without a GPU; `link_bps` is 0 where the links' rate is not known."""
    network = plan.spec.networks.experiment
    computing = [node for node in plan.nodes if node.slots]
    ranks = sorted({node.slots for node in computing})
    if not ranks:
        raise UsageError("all GPUs are cut or shared", "leave mig or shards out of one group")
    if len(ranks) > 1:
        raise UsageError(
            f"nodes have from {ranks[0]} to {ranks[-1]} ranks", "give all as many GPUs"
        )
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
    titles = [node.simulate.model for node in plan.nodes if node.simulate]
    titles += getattr(plan.spec.backend, "gpu_model", ())  # which GPULab is asked for
    if not any(node.gpus for node in plan.nodes):
        return "cpu"
    if not titles and paths.allocation.exists():
        known = facts.of_cluster(paths.facts, allocation.load(paths.allocation)).values()
        titles = [gpu.title for found in known for gpu in found.gpus]
    elif not titles:
        with suppress(GpubedError):  # some testbeds do not tell
            text = plan.spec.model_dump_json(serialize_as_any=True)
            for offer in registry.bound(plan.backend, paths).resources(plan.spec):
                if f'"{offer.name}"' in text and offer.gpu_model:
                    titles += offer.gpu_model.split(", ")
    if len(names := {gpu_named(title) for title in titles}) == 1:
        return names.pop()
    told = ", ".join(dict.fromkeys(titles)) or "nothing"
    raise UsageError(
        f"the GPU model is not known: the testbed tells {told}", "set experiment.gpu, such as v100"
    )

"""Checks of the simulated GPUs of a specification."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpubed.backends.local.image import RELEASES
from gpubed.core import nearest
from gpubed.hardware import drivers
from gpubed.hardware.facts import Facts
from gpubed.hardware.table import chip_of
from gpubed.recipes import recipe
from gpubed.spec.clusterspec import ClusterSpec, Problem
from gpubed.spec.sections import NodeGroup
from simulated_gpus import Model, models


def problems(spec: ClusterSpec) -> Iterator[Problem]:
    """Yield the simulations that are impossible, or of which no cluster can be made."""
    known: dict[int, Model] = {}
    for index, group in enumerate(spec.nodes):
        wanted = group.simulate
        if wanted is None:
            continue
        if (model := models().get(wanted.model)) is None:
            why = f"there is no GPU model {wanted.model!r}"
            near = nearest.suggestion(wanted.model.upper(), models())
            yield Problem(("nodes", index, "simulate"), why, near)
            continue
        known[index] = model
        if (gpus := _gpus(group)) > model.most:
            yield Problem(
                ("nodes", index, "simulate" if wanted.gpus else "gpus"),
                f"asks for {gpus} GPUs, and a machine with {model.model} has no room for them",
                f"{model.most} at most",
            )
        yield from _served(index, model, spec)
    yield from _common_driver(spec, known)


def _served(index: int, model: Model, spec: ClusterSpec) -> Iterator[Problem]:
    chosen = recipe.load(spec.recipe)
    # A recipe without GPUs is refused whatever the GPUs are.
    if not chosen.gpus.architectures:
        return
    if why := recipe.why_not(chosen, model.compute_capability):
        others = recipe.serving(model.compute_capability)
        yield Problem(
            ("nodes", index, "simulate"),
            f"{model.model}: {why}",
            f"recipe: {' or '.join(others)}" if others else "another GPU model",
        )


def _common_driver(spec: ClusterSpec, known: Mapping[int, Model]) -> Iterator[Problem]:
    chosen = recipe.load(spec.recipe)
    facts: dict[str, Facts] = {}
    asked, images = {}, {}
    for index, model in known.items():
        group = spec.nodes[index]
        node = f"{group.name}-0"
        facts[node] = facts_of(model, min(_gpus(group), model.most))
        if not recipe.why_not(chosen, model.compute_capability):
            asked[node], images[node] = group.gpus, group.image
    served = {node: facts[node] for node in asked}
    wanted = drivers.Wanted.of(chosen.cuda, chosen.gpus.driver)
    try:
        drivers.require_common(facts)
        for image in set(images.values()) & RELEASES.keys():
            drivers.choose(served, drivers.offers(image), wanted, asked)
    except drivers.NoDriver as error:
        yield Problem(("nodes", max(known), "simulate"), error.message, error.hint or "")


def facts_of(model: Model, gpus: int) -> Facts:
    """Return the facts of a node with this many GPUs of a model, before it has a driver.

    Raises:
        ValueError: No machine has room for so many, or none is asked for.
    """
    machine, chip = model.machine(gpus), chip_of(model.pci.device)
    on_bus = {
        "device_id": model.pci.device,
        "chip": chip.chip if chip else None,
        "generation": model.architecture,
        "compute_capability": model.compute_capability,
    }
    return Facts.model_validate(
        {
            "schema": "gpubed/facts/2",
            "host": "",
            "kernel": "",
            "cpus": 1,
            "memory_kib": 0,
            "gpus": [{"pci": gpu["pci"], **on_bus} for gpu in machine["gpus"]],
            "nvswitches": [switch["pci"] for switch in machine["nvswitches"]],
            "simulated": model.model,
        }
    )


def _gpus(group: NodeGroup) -> int:
    return (group.simulate and group.simulate.gpus) or group.gpus

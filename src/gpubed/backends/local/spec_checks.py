"""Checks a specification against the abilities of this machine, and its GPUs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from gpubed.backends.local.config import RELEASES, Config
from gpubed.core.errors import GpubedError
from gpubed.core.text import nearest_name
from gpubed.hardware import nvidia_driver
from gpubed.hardware.facts import Facts
from gpubed.hardware.table import chip_of, mig_profiles
from gpubed.recipes import recipe
from gpubed.spec.clusterspec import ClusterSpec, Problem
from gpubed.spec.sections import NodeGroup
from simulated_gpus import Model, models

_GPUS = Path("/proc/driver/nvidia/gpus")


def problems(spec: ClusterSpec) -> list[Problem]:
    """Return the parts of a specification that nodes on this machine cannot satisfy."""
    found: list[Problem] = []
    for index, group in enumerate(spec.nodes):
        found += _group(index, group)
    found += _simulated(spec)
    return [*found, *(_virtual(spec) if _is_virtual(spec) else _contained(spec))]


def warnings(spec: ClusterSpec) -> list[str]:
    """Return warnings about missing isolation, for nodes without a kernel of their own."""
    if _is_virtual(spec):
        return []
    # Docker's library is slow to import. `doctor` reports a daemon that does not answer.
    from gpubed.backends.local import container

    with suppress(GpubedError):
        return container.warnings(spec)
    return []


def _is_virtual(spec: ClusterSpec) -> bool:
    return Config.of(spec.backend).runtime == "vm"


def _contained(spec: ClusterSpec) -> Iterator[Problem]:
    network = spec.networks.experiment
    for key, why in {
        "latency": "containers cannot delay packets",
        "rdma": "containers have no kernel of their own to load Soft-RoCE into",
        "loss": "containers cannot drop packets",
    }.items():
        if getattr(network, key, None):
            instead = "leave it out, or set backend.runtime to vm"
            yield Problem(("networks", "experiment", key), why, instead)
    if spec.storage.shared.provider == "nfs":
        yield Problem(
            ("storage", "shared", "provider"),
            "containers have no kernel of their own to serve and mount NFS",
            "volume, or nfs with `runtime: vm`",
        )
    yield from _gpus(spec)


def _virtual(spec: ClusterSpec) -> Iterator[Problem]:
    network = spec.networks.experiment
    if network and network.rdma and network.rdma.device == "hardware":
        yield Problem(
            ("networks", "experiment", "rdma", "device"),
            "virtual machines of this backend get no RDMA adapter",
            "any, which gives them Soft-RoCE",
        )
    for index, group in enumerate(spec.nodes):
        if group.gpus.per_node and not group.simulate:
            yield Problem(
                ("nodes", index, "gpus"),
                "virtual machines of this backend get no GPU",
                "0, `runtime: container`, or simulate: the name of a GPU model",
            )


def _group(index: int, group: NodeGroup) -> Iterator[Problem]:
    where = ("nodes", index)
    if group.image not in RELEASES:
        why = f"there is no image {group.image!r} for nodes on this machine"
        yield Problem((*where, "image"), why, f"allowed: {', '.join(RELEASES)}")
    has = {"cpus": (os.cpu_count() or 1, 1, "CPUs"), "memory": (total_memory(), 2**30, "GiB")}
    for key, (most, unit, name) in has.items():
        asked = getattr(group.machine, key)
        if asked is not None and asked > most:
            yield Problem(
                (*where, "machine", key),
                f"asks for {asked / unit:.4g} {name}, and this machine has {most / unit:.4g}",
                f"at most {most // unit} {name}; leave it out for no limit",
            )


def _gpus(spec: ClusterSpec) -> Iterator[Problem]:
    groups = enumerate(spec.nodes)
    wanted = [
        (index, group) for index, group in groups if group.gpus.per_node and not group.simulate
    ]
    if not wanted:
        return
    total, there = sum(group.gpus.per_node * group.count for _, group in wanted), gpus()
    usable = there if has_gpu_runtime() else 0
    if total > usable:
        yield Problem(
            ("nodes", wanted[0][0], "gpus"),
            f"{total} GPU(s) are wanted for all nodes, and Docker on this machine can give "
            f"{usable} (GPUs: {there}; NVIDIA runtime: {'yes' if usable or not there else 'no'})",
            "0, a machine with the NVIDIA container toolkit, or simulate: the name of a GPU model",
        )


def total_memory() -> int:
    """Return the memory of this machine in bytes."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def gpus() -> int:
    """Return how many NVIDIA GPUs the driver of this machine sees."""
    return len(list(_GPUS.glob("*")))


def has_gpu_runtime() -> bool:
    """Return whether Docker can hand GPUs to containers."""
    from gpubed.backends.local import daemon

    with daemon.errors("ask Docker for its runtimes"):
        return "nvidia" in daemon.look().info().get("Runtimes", {})


def _simulated(spec: ClusterSpec) -> Iterator[Problem]:
    """Yield unknown GPU models, impossible machines, and clusters without a common driver."""
    known: dict[int, Model] = {}
    for index, group in enumerate(spec.nodes):
        wanted = group.simulate
        if wanted is None:
            continue
        if (model := models().get(wanted.model)) is None:
            why = f"there is no GPU model {wanted.model!r}"
            near = nearest_name(wanted.model.upper(), models())
            yield Problem(("nodes", index, "simulate"), why, near)
            continue
        known[index] = model
        if (gpus := _count(group)) > model.most:
            yield Problem(
                ("nodes", index, "simulate" if wanted.gpus else "gpus"),
                f"asks for {gpus} GPUs, and a machine with {model.model} has no room for them",
                f"{model.most} at most",
            )
        yield from _served(index, model, spec)
        mig, known_profiles = group.gpus.mig, mig_profiles(model.name)
        if mig and mig not in known_profiles:
            why = "has no such MIG profile" if known_profiles else "cannot be cut: it has no MIG"
            instead = ", ".join(known_profiles) or "shards: N, by which jobs share a GPU"
            yield Problem(("nodes", index, "gpus", "mig"), f"{model.model} {why}", instead)
    yield from _common_driver(spec, known)


def _served(index: int, model: Model, spec: ClusterSpec) -> Iterator[Problem]:
    chosen = recipe.load(spec.recipe)
    # A recipe without GPUs is refused elsewhere.
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
        facts[node] = facts_of(model, min(_count(group), model.most))
        if not recipe.why_not(chosen, model.compute_capability):
            asked[node], images[node] = group.gpus.per_node, group.image
    served = {node: facts[node] for node in asked}
    wanted = nvidia_driver.Wanted.of(chosen.cuda, chosen.gpus.driver)
    try:
        nvidia_driver.require_common(facts)
        for image in set(images.values()) & RELEASES.keys():
            nvidia_driver.choose(served, nvidia_driver.offers(image), wanted, asked)
    except nvidia_driver.NoDriver as error:
        yield Problem(("nodes", max(known), "simulate"), error.message, error.hint or "")


def facts_of(model: Model, gpus: int) -> Facts:
    """Return the facts of a node with simulated GPUs of a model, before it has a driver.

    Raises:
        ValueError: No machine has so many, or the number is 0.
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


def _count(group: NodeGroup) -> int:
    return (group.simulate and group.simulate.gpus) or group.gpus.per_node

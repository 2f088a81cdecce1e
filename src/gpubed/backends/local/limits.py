"""What nodes on one machine cannot do, found in a specification before anything is made."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gpubed.backends.local import simulated
from gpubed.backends.local.image import RELEASES
from gpubed.core.errors import GpubedError
from gpubed.spec.clusterspec import ClusterSpec, Problem
from gpubed.spec.sections import ExperimentNetwork, NodeGroup

_GIB = 2**30
_GPUS = Path("/proc/driver/nvidia/gpus")


def problems(spec: ClusterSpec) -> list[Problem]:
    """Return everything that this backend would have to refuse or to pretend."""
    found: list[Problem] = []
    for index, group in enumerate(spec.nodes):
        found += [*_image(index, group), *_machine(index, group)]
    found += simulated.problems(spec)
    if spec.backend.runtime == "vm":  # type: ignore[attr-defined]
        return [*found, *_virtual(spec)]
    if spec.networks.experiment:
        found += _link(spec.networks.experiment)
    return [*found, *_storage(spec), *_gpus(spec)]


def warnings(spec: ClusterSpec) -> list[str]:
    """Return what nodes do not hold back, where they have no kernel of their own."""
    if spec.backend.runtime == "vm":  # type: ignore[attr-defined]
        return []
    # Docker is slow to import, and whoever cannot ask it is told elsewhere.
    from gpubed.backends.local import confinement

    with suppress(GpubedError):
        return confinement.warnings(spec)
    return []


def _storage(spec: ClusterSpec) -> Iterator[Problem]:
    if spec.storage.shared.provider == "nfs":
        yield Problem(
            ("storage", "shared", "provider"),
            "containers have no kernel of their own to serve and mount NFS",
            "volume, or nfs with `runtime: vm`",
        )


def _virtual(spec: ClusterSpec) -> Iterator[Problem]:
    network = spec.networks.experiment
    if network and network.rdma and network.rdma.device == "hardware":
        yield Problem(
            ("networks", "experiment", "rdma", "device"),
            "virtual machines of this backend get no RDMA adapter",
            "any, which gives them Soft-RoCE",
        )
    for index, group in enumerate(spec.nodes):
        if group.gpus and not group.simulate:
            yield Problem(
                ("nodes", index, "gpus"),
                "virtual machines of this backend get no GPU",
                "0, `runtime: container`, or simulate: the name of a GPU model",
            )


def _link(network: ExperimentNetwork) -> Iterator[Problem]:
    where = ("networks", "experiment")
    if network.latency:
        yield Problem(
            (*where, "latency"),
            "containers cannot delay packets",
            "leave it out, or set backend.runtime to vm",
        )
    if network.rdma:
        yield Problem(
            (*where, "rdma"),
            "containers have no kernel of their own to load Soft-RoCE into",
            "leave it out, or set backend.runtime to vm",
        )
    if network.loss:
        yield Problem(
            (*where, "loss"),
            "containers cannot lose packets on purpose",
            "leave it out, or set backend.runtime to vm",
        )


def _image(index: int, group: NodeGroup) -> Iterator[Problem]:
    if group.image not in RELEASES:
        yield Problem(
            ("nodes", index, "image"),
            f"there is no image {group.image!r} for nodes on this machine",
            f"allowed: {', '.join(RELEASES)}",
        )


def _machine(index: int, group: NodeGroup) -> Iterator[Problem]:
    cpus, memory = os.cpu_count() or 1, total_memory()
    where = ("nodes", index, "machine")
    if group.machine.cpus is not None and group.machine.cpus > cpus:
        yield Problem(
            (*where, "cpus"),
            f"asks for {group.machine.cpus:g} CPUs, and this machine has {cpus}",
            f"at most {cpus}; leave it out for no limit",
        )
    if group.machine.memory is not None and group.machine.memory > memory:
        yield Problem(
            (*where, "memory"),
            f"asks for {group.machine.memory / _GIB:.1f} GiB, and this machine has "
            f"{memory / _GIB:.1f} GiB",
            f"at most {int(memory / _GIB)} GiB; leave it out for no limit",
        )


def _gpus(spec: ClusterSpec) -> Iterator[Problem]:
    groups = enumerate(spec.nodes)
    wanted = [(index, group) for index, group in groups if group.gpus and not group.simulate]
    if not wanted:
        return
    total, there = sum(group.gpus * group.count for _, group in wanted), gpus()
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

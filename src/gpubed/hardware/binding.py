"""Binds each rank of a node to a GPU, and to the CPUs and the RDMA device nearest to that GPU.

Ranks whose GPUs are attached to the same CPUs get equal parts of them, so that threads do not move
to another rank's CPUs or to another socket.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gpubed.hardware.facts import GPU, HCA, Facts

# From near to far, in the words of `nvidia-smi topo -m`.
_DISTANCES = ("PIX", "PXB", "PHB", "NODE", "SYS")


@dataclass(frozen=True)
class Binding:
    """The GPU, CPUs and RDMA device of one rank."""

    rank: int  # the rank's number on its node
    gpu: int  # the driver's index of its GPU
    cpus: str  # its CPUs as `0-4,40-44`; empty if unknown
    hca: str | None  # the nearest RDMA device that carries traffic, if any


def bind(facts: Facts, ranks: int) -> tuple[Binding, ...]:
    """Bind the ranks of a node: local rank r to GPU r. Empty without GPUs."""
    gpus = sorted((g for g in facts.gpus if g.index is not None), key=lambda g: g.index or 0)
    if not gpus:
        return ()
    chosen = [gpus[rank % len(gpus)] for rank in range(ranks)]
    neighbours = Counter(gpu.cpus for gpu in chosen)
    placed: Counter[str | None] = Counter()
    used: Counter[str] = Counter()
    found = []
    for rank, gpu in enumerate(chosen):
        cpus = share(gpu.cpus or "", placed[gpu.cpus], neighbours[gpu.cpus])
        placed[gpu.cpus] += 1
        hca = _nearest(gpu, facts.hcas, used)
        used.update([hca] if hca else [])
        found.append(Binding(rank, gpu.index or 0, cpus, hca))
    return tuple(found)


def share(cpus: str, part: int, parts: int) -> str:
    """Return one of several equal parts of a CPU list.

    Each range is divided: in `0-19,40-59`, the second range usually has the second threads of the
    cores in the first, so both threads of a core stay together. If a range has too few CPUs, each
    part is the whole list.
    """
    ranges = [_bounds(text) for text in cpus.split(",") if text]
    if any(last - first + 1 < parts for first, last in ranges):
        return cpus
    pieces = []
    for first, last in ranges:
        size = (last - first + 1) // parts
        start = first + part * size
        pieces.append(f"{start}-{start + size - 1}" if size > 1 else str(start))
    return ",".join(pieces)


def _bounds(text: str) -> tuple[int, int]:
    first, _, last = text.partition("-")
    return int(first), int(last or first)


def _nearest(gpu: GPU, hcas: Sequence[HCA], used: Counter[str]) -> str | None:
    def order(hca: HCA) -> tuple[int, float, int, str]:
        rate = max((port.rate_gbps or 0 for port in hca.ports), default=0)
        return _distance(gpu, hca), -rate, used[hca.name], hca.name

    nearest = min((hca for hca in hcas if hca.active), key=order, default=None)
    return nearest.name if nearest else None


def _distance(gpu: GPU, hca: HCA) -> int:
    link = gpu.links.get(hca.name)
    if link is None:  # nvidia-smi is missing, or does not list the device
        link = "NODE" if gpu.numa_node is not None and gpu.numa_node == hca.numa_node else "SYS"
    return _DISTANCES.index(link) if link in _DISTANCES else len(_DISTANCES)

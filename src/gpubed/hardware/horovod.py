"""Derives Horovod's settings on a node from its network, cores and GPUs.

docs/concepts/horovod-settings.md, which is generated from here, has the reason and the source of
each setting that differs from Horovod's default.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MIB = 2**20
DEFAULT_FUSION_MB = 128
"""Horovod's default since 0.21 (horovod#2468), in MiB."""
LARGEST_FUSION_MB = 512
"""Upper bound in MiB: each rank keeps the buffer during the whole run, in its GPU's memory."""
NODES = 16
"""Number of nodes that the buffer is made for, also in smaller clusters.

Nodes may be added to a cluster, and a buffer that is too large costs memory only.
"""
HOP_S, RDMA_HOP_S = 35e-6, 8e-6
"""Start-up time of a message between two nodes over TCP and over RDMA, in seconds.

MG-WFBP's source has 30 to 37 µs (TCP) and 7 to 8 µs (RDMA) for each of the 2 (N-1) hops of an
allreduce over N = 8 and 16 nodes.
"""
STARTUP_SHARE = 0.05
"""Largest share of start-up in the time of a message of the buffer's size."""
WAIT_US = 50
THREADS_OF_A_RANK = 3
"""The waiting thread, Horovod's thread that sums, and Gloo's or NCCL's that moves bytes."""


@dataclass(frozen=True)
class Place:
    """The properties of a node that decide its settings."""

    cores: int  # CPUs that the node's processes may use, a container's quota rounded up
    ranks: int  # number of ranks that a job starts on it
    shares_cpus: bool = False  # whether other nodes compute on the same CPUs (containers)
    gpus: int = 0  # number of GPUs that compute; simulated ones do not count
    rate_bps: int | None = None  # declared rate of each node's link, in bit/s; None if undeclared
    latency_s: float = 0.0  # declared one-way delay of the network of jobs, in seconds
    rdma: bool = False  # whether jobs use RDMA there

    @property
    def cores_per_rank(self) -> int:
        """Whole cores of the node for each of its ranks; at least one."""
        return max(1, self.cores // max(1, self.ranks))


@dataclass(frozen=True)
class Settings:
    """Settings of a node's ranks."""

    threads: int  # computing threads of each rank
    fusion_mb: float | None  # size of the fusion buffer in MiB; None for Horovod's default
    wait_us: int  # sleep of a waiting rank between two polls, in µs; 0 yields the CPU instead


def derive(place: Place) -> Settings:
    """Return the settings for a node."""
    return Settings(
        threads=place.cores_per_rank, fusion_mb=fusion_mb(place), wait_us=wait_us(place)
    )


def least_fusion_bytes(place: Place) -> float:
    """Return the least message size, in bytes, with a share of start-up below `STARTUP_SHARE`.

    An allreduce of M bytes over N nodes takes a + b M, with a = 2 (N-1) t and b = 2 (N-1) / N * 8 /
    rate for a start-up time t of each hop (MG-WFBP, arXiv:1811.11141). Start-up takes at most the
    share e of b M for M >= a / (e b) = N t rate / (8 e).
    """
    hop_s = (RDMA_HOP_S if place.rdma else HOP_S) + place.latency_s
    return NODES * hop_s * (place.rate_bps or 0) / (8 * STARTUP_SHARE)


def fusion_mb(place: Place) -> float | None:
    """Return the fusion buffer in MiB if Horovod's default is too small, else None.

    It depends only on the network, which is the same for all nodes: ranks with different buffers
    would fuse different tensors, and crash with a segmentation fault.
    """
    least = math.ceil(least_fusion_bytes(place) / MIB)
    return min(least, LARGEST_FUSION_MB) if least > DEFAULT_FUSION_MB else None


def wait_us(place: Place) -> int:
    """Return how long a rank sleeps between two polls: 0 on GPU nodes with cores to spare."""
    has_cores = place.cores_per_rank >= THREADS_OF_A_RANK and not place.shares_cpus
    return 0 if place.gpus and has_cores else WAIT_US

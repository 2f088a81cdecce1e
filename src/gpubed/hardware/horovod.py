"""Derives Horovod's settings on a node from its network, cores and GPUs.

Settings differ from Horovod's defaults only for a reason; docs/concepts/horovod-settings.md has the
reasons and their sources, and is generated from here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MIB = 2**20
DEFAULT_FUSION_MB = 128
"""Horovod's own since 0.21 (horovod#2468), in MiB."""
LARGEST_FUSION_MB = 512
"""Each rank holds it for the whole run, a GPU's in the GPU's memory."""
NODES = 16
"""As many as there may be, not as there are: the buffer stays while nodes come and go, and one
that is larger than it must be costs nothing but memory."""
HOP_S, RDMA_HOP_S = 35e-6, 8e-6
"""Start of a message between two nodes, in seconds: what MG-WFBP's source has for an allreduce
over N = 8 and 16 nodes, by its 2 (N-1) hops, is 30 to 37 µs over TCP and 7 to 8 µs over RDMA."""
STARTUP_SHARE = 0.05
"""What starts may take of the time of a message that is as large as the buffer."""
WAIT_US = 50
THREADS_OF_A_RANK = 3
"""The one that waits, Horovod's that sums, and the one that moves bytes (Gloo's, or NCCL's)."""


@dataclass(frozen=True)
class Place:
    """The properties of a node that its settings follow from."""

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

    threads: int  # number of threads that a rank computes with
    fusion_mb: float | None  # MiB of gradients that are sent together; None: Horovod's default
    wait_us: int  # how long a waiting rank sleeps between two polls, in µs; 0 yields instead


def derive(place: Place) -> Settings:
    """Return the settings for a node."""
    return Settings(
        threads=place.cores_per_rank, fusion_mb=fusion_mb(place), wait_us=wait_us(place)
    )


def least_fusion_bytes(place: Place) -> float:
    """Return the size from which a message's start-up takes a small share of its time, in bytes.

    An allreduce of M bytes over N nodes takes a + b M, with a = 2 (N-1) t and b = 2 (N-1) / N * 8 /
    rate for a start-up time t of each hop (MG-WFBP, arXiv:1811.11141). Start-up takes at most the
    share e of b M for M >= a / (e b) = N t rate / (8 e).
    """
    hop_s = (RDMA_HOP_S if place.rdma else HOP_S) + place.latency_s
    return NODES * hop_s * (place.rate_bps or 0) / (8 * STARTUP_SHARE)


def fusion_mb(place: Place) -> float | None:
    """Return the fusion buffer in MiB if Horovod's default would be too small, else None.

    It depends on the network alone, which all nodes share: ranks with different buffers would fuse
    different tensors, which ends in a segmentation fault.
    """
    least = math.ceil(least_fusion_bytes(place) / MIB)
    return min(least, LARGEST_FUSION_MB) if least > DEFAULT_FUSION_MB else None


def wait_us(place: Place) -> int:
    """Return how long a rank sleeps between two polls: 0 on GPU nodes with cores to spare."""
    has_cores = place.cores_per_rank >= THREADS_OF_A_RANK and not place.shares_cpus
    return 0 if place.gpus and has_cores else WAIT_US

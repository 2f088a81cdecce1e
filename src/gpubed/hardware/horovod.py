"""What Horovod is told on a node, from what is known of its network, cores and GPUs.

Only what has a reason differs from Horovod's own defaults; docs/concepts/horovod-settings.md
has the reasons and their sources, and is written from here.
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
    """What the settings of a node follow from.

    Attributes:
        cores: CPUs that the node's processes may use, a container's quota rounded up.
        ranks: Ranks that a job starts on it.
        shares_cpus: Whether other nodes compute on the same CPUs (containers of one machine).
        gpus: GPUs that compute; none where a node only pretends to have them.
        rate_bps: What each node's link is declared to carry, in bit/s; None where nobody said.
        latency_s: Declared delay of the network of jobs, one way, in seconds.
        rdma: Whether jobs use RDMA there.
    """

    cores: int
    ranks: int
    shares_cpus: bool = False
    gpus: int = 0
    rate_bps: int | None = None
    latency_s: float = 0.0
    rdma: bool = False

    @property
    def cores_per_rank(self) -> int:
        """Whole cores of the node for each of its ranks; at least one."""
        return max(1, self.cores // max(1, self.ranks))


@dataclass(frozen=True)
class Settings:
    """What a node's ranks are told.

    Attributes:
        threads: Threads that a rank computes with.
        fusion_mb: MiB of gradients that travel together; None leaves Horovod's default.
        wait_us: How long a rank that waits sleeps between two looks, in µs; 0 yields instead.
    """

    threads: int
    fusion_mb: float | None
    wait_us: int


def derive(place: Place) -> Settings:
    """Return the settings that follow from what is known of a node."""
    return Settings(
        threads=place.cores_per_rank,
        fusion_mb=fusion_mb(place),
        wait_us=wait_us(place),
    )


def least_fusion_bytes(place: Place) -> float:
    """Return how large messages must be for starts to be a small share of their time.

    An allreduce of M bytes over N nodes takes a + b M, with a = 2 (N-1) t and
    b = 2 (N-1) / N * 8 / rate for a start t of each hop (MG-WFBP, arXiv:1811.11141). Its starts
    are at most the share e of b M for M >= a / (e b) = N t rate / (8 e).
    """
    hop_s = (RDMA_HOP_S if place.rdma else HOP_S) + place.latency_s
    return NODES * hop_s * (place.rate_bps or 0) / (8 * STARTUP_SHARE)


def fusion_mb(place: Place) -> float | None:
    """Return the fusion buffer in MiB where Horovod's own would be too small, else None.

    It follows from the network alone: ranks that disagreed would fuse other tensors than the
    others, which ends in a segmentation fault.
    """
    least = math.ceil(least_fusion_bytes(place) / MIB)
    return min(least, LARGEST_FUSION_MB) if least > DEFAULT_FUSION_MB else None


def wait_us(place: Place) -> int:
    """Return how long a rank sleeps between two looks: not at all where it has cores to spare."""
    has_cores = place.cores_per_rank >= THREADS_OF_A_RANK and not place.shares_cpus
    return 0 if place.gpus and has_cores else WAIT_US

"""The step time of synchronous data-parallel training, from physics and a few fitted numbers.

The forward pass takes a third of a step of one GPU, the backward pass two thirds. The gradients of
a layer are ready when the backward pass has left it; they are fused into buffers (Horovod: what is
ready at each cycle; DDP: buckets in order) that are averaged one after the other. A step ends
with the last buffer, or with the backward pass. Each equation and constant:
docs/concepts/prediction.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from statistics import NormalDist

from gpubed.core.errors import UsageError
from gpubed.prediction import rates
from gpubed.prediction.shapes import Shape, shape

FORWARD = 1 / 3  # of a step of one GPU
# NCCL's cost model (NVIDIA/nccl 5067397c, src/graph/tuning.cc), protocol Simple: seconds.
BASE_S, NVLINK_S, PCIE_S, NET_S = 8.4e-6, 3.4e-6, 5.7e-6, 14e-6
TREE_SHARE = 0.92  # of the ring's bandwidth
# A step over TCP beyond that: startup of 0.52 and 0.91 ms on 8 and 16 nodes at 10 Gbit/s, over
# 2(n - 1) steps (constants in the source of HKBU-HPML/MG-WFBP), less NET_S.
TCP_S = 20e-6
# bytes/s of a ring within a node: NCCL's PCIe 3 x16, and measured bus bandwidths of NVLink.
PCIE_BPS = 12e9
NVLINK_BPS = {"v100": 130e9, "p100-sxm2": 60e9, "a100": 230e9, "h100": 400e9, "h200": 400e9}
MIB = 2**20
DDP_BUCKET, DDP_FIRST = 25 * MIB, 1 * MIB  # torch's bucket_cap_mb and first bucket
HOROVOD_FUSION, HOROVOD_CYCLE = 128 * MIB, 1e-3  # since 0.21; 64 MiB and 5 ms before
# What more TCP connections are worth, as a power of their number: 1 to 8 rings 16.5 to 30 Gbit/s
# (nccl#209), 2 threads 36-41 of 100 (nccl#450); Amazon's 16 gain little above 25 of 100
# (arXiv:2006.10103, by secondary pages).
CONNECTIONS = 0.35
TCP_SHARE = 0.94  # payload of an Ethernet frame of 1500 bytes: 1448 / 1538
Z90 = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True)
class Setup:
    """One training to predict.

    Attributes:
        model: name in the table of model shapes, such as `resnet50`.
        gpu: name in the table of rates, such as `v100`; `cpu` for a node without GPUs.
        nodes: number of nodes.
        gpus_per_node: GPUs (ranks) per node.
        batch: images per rank and step.
        link_bps: nominal rate of the link between nodes, bit/s; of one adapter.
        transport: `tcp`, `rdma` or `none` (one node).
        precision: `fp32`, `tf32`, `amp` (mixed), `fp16` or `bf16`; gradients travel as fp32.
        rate: images/s of one GPU, where known; None looks it up.
        node_rate: images/s of one node with all its GPUs, where known; None predicts it.
        framework: `horovod` or `ddp`.
        collectives: the library that averages gradients: `nccl` (the default on GPUs), or `gloo`
            (the default without GPUs) or `mpi`, which sum on CPUs.
        fusion_bytes: Horovod's fusion threshold or DDP's buckets, bytes; 0 averages each tensor by
            itself, None is the framework's default.
        cycle_s: Horovod's cycle time, seconds; None is its default.
        compression: `none`, or `fp16`: gradients travel as that.
        sockets: TCP connections between two nodes; NCCL's default is 1, on Amazon's adapters 16.
        nics: adapters per node that carry gradients.
        algorithm: `ring`, `tree`, `auto` (the faster one, NCCL 2.4 or later) or `hierarchical`.
        input_rate: images/s that a node reads and decodes; None is no limit.
        real_images: whether images are read and decoded, as fast as is not known: a wider interval.
        tuned: False where the link or the software is not known to be in order: a wider interval.
        shape: of a model that is not in the table.
    """

    model: str
    gpu: str
    nodes: int
    gpus_per_node: int
    batch: int
    link_bps: float
    transport: str = "tcp"
    precision: str = "fp32"
    rate: float | None = None
    node_rate: float | None = None
    framework: str = "horovod"
    collectives: str | None = None
    fusion_bytes: float | None = None
    cycle_s: float | None = None
    compression: str = "none"
    sockets: int = 1
    nics: int = 1
    algorithm: str = "auto"
    input_rate: float | None = None
    real_images: bool = False
    tuned: bool = True
    shape: Shape | None = None

    @property
    def ranks(self) -> int:
        """GPUs, or processes on CPUs, of all nodes."""
        return self.nodes * self.gpus_per_node

    @property
    def by_nccl(self) -> bool:
        """Whether NCCL averages gradients on GPUs; else CPUs do."""
        return self.collectives == "nccl" or (self.collectives is None and self.gpu != "cpu")


@dataclass(frozen=True)
class Prediction:
    """Rate and step time of one set-up; `low` and `high` bound 90 % of measured rates.

    Attributes:
        images_per_s, low, high: of all ranks together.
        step_s: seconds per step.
        efficiency: rate over `nodes x gpus_per_node` times the rate of one GPU.
        parts: seconds of a step by cause: compute, slowdown, exposed_communication, latency,
            stragglers, input.
        dominates: the key of the largest part beside compute.
        rate_source: where the one-GPU rate comes from.
    """

    images_per_s: float
    low: float
    high: float
    step_s: float
    efficiency: float
    parts: dict[str, float] = field(default_factory=dict)
    dominates: str = ""
    rate_source: str = ""


@dataclass(frozen=True)
class Calibration:
    """Fitted numbers; the shipped ones, or those that a probe measured on a cluster.

    Attributes:
        tcp_share: of the link's rate that TCP carries; frames of 1500 bytes leave 0.94 of it.
        socket_bps: bit/s that a TCP connection of NCCL copies between GPU, host and kernel; copies
            and the wire take turns.
        rdma_share: of the link's rate that NCCL gets by RDMA.
        cpu_bps: bit/s at which a CPU copies and sums gradients (Gloo, MPI).
        contention: a ring is as fast as its slowest link; this is the standard deviation of a
            link's time per byte over its mean.
        spread: standard deviation of a rank's compute time over its mean.
        overhead: share that Horovod's negotiation between nodes adds to the compute time.
        slowdown: seconds that a second of communication adds to the backward pass it overlaps.
        compute: what multiplies the compute time; 1 unless a run on this cluster was given.
        effective_bps: bit/s between two nodes that a probe measured, all adapters together.
        error: standard deviation of the logarithm of the rate, all else known.
        link_error: the same of the link's effective rate, by transport (`cpu`: Gloo and MPI).
    """

    tcp_share: float = 0.8428
    socket_bps: float = 43.93e9
    rdma_share: float = 0.9478
    cpu_bps: float = 7.868e9
    contention: float = 0.07488
    spread: float = 0.02392
    overhead: float = 0.02079
    slowdown: float = 0.1123
    compute: float = 1.0
    effective_bps: float | None = None
    error: float = 0.042
    link_error: dict[str, float] = field(
        default_factory=lambda: {"tcp": 0.45, "rdma": 0.12, "cpu": 0.4}
    )


# TCP that is not known to be tuned reaches this share of what tuned TCP does: the middle of the
# untuned runs of the shipped table, 0.1 to 0.7.
UNTUNED_SHARE = 0.3
# Standard deviations of logarithms, of the rate and of the link's rate.
UNTUNED_ERROR, UNTUNED_LINK = 0.10, 0.8
PROBED_ERROR, PROBED_LINK, PROBED_UNTUNED_LINK = 0.04, 0.15, 0.3
REAL_ERROR = 0.05  # of rates with real images in the shipped table, beside those of noise
CPU_ERROR = 0.3  # processors that also average: efficiencies of 0.45 to 0.78 (horovod#1120)
# Of a measured run: the same one on another day differs so much (CSC's table); one node's losses
# stay.
_MEASUREMENT, _NODE = 0.02, 0.01
_CPU_MEASUREMENT = 0.06  # of processors that others share: 4 points of two campaigns


def predict(setup: Setup, calibration: Calibration | None = None) -> Prediction:
    """Predict one training.

    Raises:
        UsageError: A value of the set-up is impossible, or its model or GPU is not in the tables.
    """
    _require_possible(setup)
    known = calibration or Calibration()
    model = setup.shape or shape(setup.model)
    rate = _rate(setup, model)
    known = _by_node(setup, known)
    t1 = setup.batch / rate.images_per_s
    parts = _parts(setup, model, t1, known)
    step = sum(parts.values())
    images = setup.ranks * setup.batch / step
    own, link = _errors(setup, known)

    def bound(sign: int) -> float:
        moved = _parts(setup, model, t1, known, link=math.exp(sign * Z90 * link))
        by_link = math.log(step / sum(moved.values()))
        # Independent errors add as squares.
        return images * math.exp(sign * math.hypot(by_link, Z90 * own, Z90 * rate.error))

    sent = 2 * (1 - 1 / setup.nodes) * model.parameters * _sent(setup) / _line(setup, known)
    ceiling = setup.ranks * setup.batch / sent if sent else math.inf
    causes = {name: value for name, value in parts.items() if name != "compute"}
    return Prediction(
        images_per_s=images,
        low=bound(-1),
        high=min(bound(1), ceiling),
        step_s=step,
        efficiency=images / (setup.ranks * rate.images_per_s),
        parts=parts,
        dominates=max(causes, key=causes.__getitem__),
        rate_source=rate.source,
    )


def calibrated(setup: Setup, images_per_s: float, known: Calibration | None = None) -> Calibration:
    """Return a calibration that predicts a measured run: of one node, or a probe on a few.

    The link's rate and the compute time move, each by as much as it was uncertain.

    Args:
        setup: what was measured.
        images_per_s: of all ranks.
        known: the numbers to start from.
    """
    from scipy.optimize import least_squares  # takes a second

    start = _by_node(setup, known or Calibration())
    one = _rate(setup, setup.shape or shape(setup.model))
    own, link = _errors(setup, start)
    own = math.hypot(own, one.error)
    before = effective_bps(setup, start) if setup.nodes > 1 else None
    noise = _MEASUREMENT if setup.nodes > 1 else _NODE

    def moved(by: Sequence[float]) -> Calibration:
        rate = before * math.exp(link * by[1]) if before else start.effective_bps
        return replace(start, compute=start.compute * math.exp(own * by[0]), effective_bps=rate)

    def misses(by: Sequence[float]) -> list[float]:
        step = step_time(replace(setup, node_rate=None, rate=one.images_per_s), moved(by))
        return [math.log(setup.ranks * setup.batch / step / images_per_s) / noise, *by]

    # A link that does not limit the start has no slope there.
    tried = [least_squares(misses, [0.0, by], diff_step=1e-3) for by in (0.0, -1.0, -2.0, -3.0)]
    return moved(min(tried, key=lambda each: each.cost).x)


def _by_node(setup: Setup, known: Calibration) -> Calibration:
    """Return the calibration that predicts the rate of one node, where that is given."""
    if not setup.node_rate or setup.nodes == 1 or setup.gpus_per_node == 1:
        return known
    rate = setup.rate or setup.node_rate / setup.gpus_per_node
    return calibrated(replace(setup, nodes=1, node_rate=None, rate=rate), setup.node_rate, known)


def step_time(setup: Setup, calibration: Calibration) -> float:
    """Return the seconds of a step of a set-up whose one-GPU or one-node rate is given."""
    model = setup.shape or shape(setup.model)
    t1 = setup.batch / _rate(setup, model).images_per_s
    known = _by_node(setup, calibration)
    passes = _passes(setup, model, t1, known, 1.0)
    return max(_averaged(setup, model, *passes), _read(setup))


def effective_bps(setup: Setup, calibration: Calibration) -> float:
    """Return the bit/s of gradients between two nodes, all adapters together."""
    if calibration.effective_bps:
        return calibration.effective_bps
    if setup.transport == "rdma":
        wire = calibration.rdma_share * setup.link_bps
    else:
        copies = setup.sockets**CONNECTIONS * calibration.socket_bps
        wire = 1 / (1 / (calibration.tcp_share * setup.link_bps) + 1 / copies)
        wire *= 1 if setup.tuned else UNTUNED_SHARE
    if not setup.by_nccl:
        wire = 1 / (1 / wire + 1 / calibration.cpu_bps)
    return setup.nics * wire


def _line(setup: Setup, known: Calibration) -> float:
    """Return the bytes/s that a node's adapters carry at most, or more if a probe measured it."""
    payload = TCP_SHARE if setup.transport == "tcp" else 1.0
    return max(payload * setup.link_bps * setup.nics, known.effective_bps or 0.0) / 8 or math.inf


def _parts(
    setup: Setup, model: Shape, t1: float, known: Calibration, link: float = 1.0
) -> dict[str, float]:
    """Return the seconds of a step by cause; `link` multiplies the effective rate of the link."""
    late = t1 * known.spread * _expected_maximum(setup.ranks)
    forward, backward, wire, latency = _passes(setup, model, t1, known, link)
    end = forward + backward
    last = _averaged(setup, model, forward, backward, wire, latency)
    alone = _averaged(setup, model, forward, backward, wire, 0.0)
    return {
        "compute": t1,
        "slowdown": end - t1 - late,
        "stragglers": late,
        "exposed_communication": alone - end,
        "latency": last - alone,
        "input": max(0.0, _read(setup) - last),
    }


def _passes(
    setup: Setup, model: Shape, t1: float, known: Calibration, link: float
) -> tuple[float, float, float, float]:
    """Return seconds of forward and backward pass, per byte of gradients, and per allreduce."""
    n = setup.ranks
    if n == 1:
        return t1 * FORWARD, t1 * (1 - FORWARD), 0.0, 0.0
    hooks = known.overhead if setup.nodes > 1 and setup.framework == "horovod" else 0.0
    compute = t1 * (known.compute * (1 + hooks) + known.spread * _expected_maximum(n))
    wire, latency = _costs(setup, known, link)
    total = model.parameters * _sent(setup) * wire
    backward = compute * (1 - FORWARD)
    return compute * FORWARD, backward + known.slowdown * min(total, backward), wire, latency


def _averaged(
    setup: Setup, model: Shape, forward: float, backward: float, wire: float, latency: float
) -> float:
    """Return when all gradients are averaged: with the backward pass, or after it."""
    if setup.ranks == 1:
        return forward + backward
    sent = _sent(setup)
    ready = [(forward + backward * done, size * sent) for done, size in model.readiness]
    fuse = _buckets if setup.framework == "ddp" else _cycles
    return max(forward + backward, fuse(setup, ready, wire, latency))


def _sent(setup: Setup) -> int:
    """Return the bytes that a gradient travels as."""
    return 2 if setup.compression == "fp16" else 4


def _read(setup: Setup) -> float:
    """Return the seconds in which a node reads the images of a step."""
    return setup.gpus_per_node * setup.batch / setup.input_rate if setup.input_rate else 0.0


def _costs(setup: Setup, known: Calibration, link: float) -> tuple[float, float]:
    """Return seconds per byte of gradients, and seconds of each allreduce beside."""
    n, nodes = setup.ranks, setup.nodes
    kind = _within(setup.gpu)
    inner = NVLINK_S if kind else PCIE_S
    within = 2 * (n - 1) / n / (kind or PCIE_BPS) if setup.gpus_per_node > 1 else 0.0
    if nodes == 1:
        return within, BASE_S + 2 * (n - 1) * inner
    outer = NET_S + (0 if setup.transport == "rdma" else TCP_S)
    slowest = 1 + known.contention * (_expected_maximum(nodes) - _expected_maximum(2))
    rate = min(effective_bps(setup, known) * link / 8, _line(setup, known)) / slowest
    ring = BASE_S + 2 * (n - nodes) * inner + 2 * (nodes - 1) * outer
    between = 2 * (n - 1) / n / rate
    if setup.algorithm == "hierarchical":
        return within + 2 * (nodes - 1) / nodes / rate, ring
    if setup.algorithm == "ring" or not setup.by_nccl:
        return max(within, between), ring
    # Of both algorithms, `auto` takes the bandwidth of the ring (large buffers) and the latency of
    # the faster one (small buffers).
    tree = BASE_S + 2 * ((setup.gpus_per_node - 1) * inner + math.log2(nodes) * outer)
    if setup.algorithm == "tree":
        return max(within, between / TREE_SHARE), tree
    return max(within, between), min(ring, tree)


def _cycles(setup: Setup, ready: Sequence[tuple[float, int]], wire: float, latency: float) -> float:
    """Return when Horovod has averaged all: each cycle sends what is ready, in buffers."""
    cycle = HOROVOD_CYCLE if setup.cycle_s is None else setup.cycle_s
    limit = HOROVOD_FUSION if setup.fusion_bytes is None else setup.fusion_bytes
    waits = not setup.by_nccl  # the thread of cycles itself averages on CPUs
    ends = tick = 0.0
    at = 0
    while at < len(ready):
        # Cycles run on while nothing is ready.
        first = max(ends if waits else tick, ready[at][0])
        tick = max(tick + cycle, first + cycle / 2)
        taken = at
        while taken < len(ready) and ready[taken][0] <= tick:
            taken += 1
        held = 0.0
        for _, size in ready[at:taken]:
            if held and held + size > limit:
                ends, held = max(ends, tick) + latency + held * wire, 0.0
            held += size
        ends = max(ends, tick) + latency + held * wire
        at = taken
    return ends


def _buckets(
    setup: Setup, ready: Sequence[tuple[float, int]], wire: float, latency: float
) -> float:
    """Return when DDP has averaged all: buckets are sent in order, each once it is full."""
    limit = DDP_BUCKET if setup.fusion_bytes is None else setup.fusion_bytes
    ends = held = 0.0
    first = min(DDP_FIRST, limit)
    for place, (time, size) in enumerate(ready):
        held += size
        if held >= first or place == len(ready) - 1:
            ends = max(ends, time) + latency + held * wire
            held, first = 0.0, limit
    return ends


@cache
def _expected_maximum(n: int) -> float:
    """Return the mean of the largest of n standard normal values, by Blom's approximation."""
    return NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) if n > 1 else 0.0


def _within(gpu: str) -> float | None:
    """Return bytes/s of NVLink between the GPUs of a node; None is PCIe."""
    name = gpu.lower()
    known = (rate for kind, rate in NVLINK_BPS.items() if kind in name and "pcie" not in name)
    return next(known, None)


def _rate(setup: Setup, model: Shape) -> rates.Rate:
    """Return the one-GPU rate: given, from the node's, or from the table."""
    if setup.rate:
        return rates.Rate(setup.rate, 0.0, "given")
    if setup.node_rate:
        return rates.Rate(setup.node_rate / setup.gpus_per_node, 0.02, "given rate of a node")
    return rates.lookup(setup.gpu, setup.model, model, setup.batch, setup.precision)


def _errors(setup: Setup, known: Calibration) -> tuple[float, float]:
    """Return standard deviations of the logarithm: of the rate, and of the link's rate."""
    if setup.ranks == 1:
        again = _CPU_MEASUREMENT if setup.gpu == "cpu" else _MEASUREMENT
        return again if setup.rate else 0.0, 0.0
    kind = setup.transport if setup.by_nccl else "cpu"
    link = known.link_error.get(kind, 0.0)
    own = known.error if setup.tuned else UNTUNED_ERROR
    if known.effective_bps:
        own, link = max(own, PROBED_ERROR), PROBED_LINK if setup.tuned else PROBED_UNTUNED_LINK
    elif not setup.tuned:
        link = max(link, UNTUNED_LINK)
    reads = setup.real_images and not (setup.input_rate or setup.node_rate)
    real = REAL_ERROR if reads else 0.0
    cpu = CPU_ERROR if setup.gpu == "cpu" and setup.nodes > 1 else 0.0
    return math.hypot(own, real, cpu), link if setup.nodes > 1 else 0.0


_CHOICES = {
    "transport": ("tcp", "rdma", "none"),
    "precision": ("fp32", "tf32", "amp", "fp16", "bf16"),
    "framework": ("horovod", "ddp"),
    "collectives": (None, "nccl", "gloo", "mpi"),
    "compression": ("none", "fp16"),
    "algorithm": ("ring", "tree", "auto", "hierarchical"),
}

_MOST = 1_000_000  # nodes, GPUs, images of a batch: larger numbers are typing errors


def _require_possible(setup: Setup) -> None:
    for name, allowed in _CHOICES.items():
        if (value := getattr(setup, name)) not in allowed:
            raise UsageError(
                f"{name} is {value!r}", f"choose one of {', '.join(filter(None, allowed))}"
            )
    for name in ("nodes", "gpus_per_node", "batch", "sockets", "nics"):
        if getattr(setup, name) < 1:
            raise UsageError(f"{name} is {getattr(setup, name)}", "it must be at least 1")
        if getattr(setup, name) > _MOST:
            raise UsageError(f"{name} is {getattr(setup, name)}", f"it must be {_MOST:,} at most")
    for name in ("rate", "node_rate", "input_rate", "fusion_bytes", "cycle_s"):
        value, least = getattr(setup, name), "above 0 images/s" if "rate" in name else "0 or more"
        if value is not None and not (0 < value < math.inf or (value == 0 and "rate" not in name)):
            raise UsageError(f"{name} is {value}", f"it must be {least}")
    if setup.nodes > 1 and (setup.transport == "none" or not setup.link_bps > 0):
        raise UsageError(
            f"{setup.nodes} nodes have no link", "give its rate and transport, or one node"
        )
    if setup.gpu == "cpu" and setup.collectives == "nccl":
        raise UsageError("NCCL averages between GPUs, not CPUs", "choose collectives gloo or mpi")

"""The step time of synchronous data-parallel training, from physics and a few fitted numbers."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Setup:
    """One training to predict.

    Attributes:
        model: name in the table of model shapes, such as `resnet50`.
        gpu: name in the table of rates, such as `v100`; `cpu` for a node without GPUs.
        nodes: number of nodes.
        gpus_per_node: GPUs (ranks) per node.
        batch: images per rank and step.
        link_bps: nominal rate of the link between nodes, bit/s.
        transport: `tcp`, `rdma` or `none` (one node).
        precision: `fp32`, `amp` (mixed) or `bf16`.
        rate: images/s of one GPU, where known; None looks it up.
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


@dataclass(frozen=True)
class Prediction:
    """Rate and step time of one set-up; `low` and `high` bound 90 % of measured rates.

    Attributes:
        images_per_s, low, high: of all ranks together.
        step_s: seconds per step.
        efficiency: rate over `nodes x gpus_per_node` times the rate of one GPU.
        parts: seconds of a step by cause: compute, exposed_communication, latency, stragglers, input.
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
    """Fitted numbers; the shipped ones, or those that a probe measured on a cluster."""


def predict(setup: Setup, calibration: Calibration | None = None) -> Prediction:
    """Predict one training."""
    raise NotImplementedError

"""The GPU memory that a training needs, and what to do where it does not fit.

The largest of three moments counts, each a sum of tensors that torch holds at once:

- the optimizer's step: weights, gradients, the optimizer's state, and its temporary copies;
- the backward pass, at each layer: weights, state, gradients of the layers behind, what autograd
  keeps of the layers before, and under autocast the weights' copies of two bytes;
- the first step with `torch.backends.cudnn.benchmark`, at each convolution: the same without the
  state, with the workspace of the largest algorithm that cuDNN tries. In fp32 that is an FFT. Where
  there is no room for it, cuDNN tries smaller ones, so it bounds what is used, not what is needed.

The figures are torch's `max_memory_allocated`; `CONTEXT_BYTES` are outside of them.
"""

from __future__ import annotations

import gzip
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from gpubed.core.errors import UsageError
from gpubed.core.units import format_rate
from gpubed.prediction.shapes import Layer, Shape

# Bytes of a weight in the optimizer's state, and in temporaries of its step: torch's `foreach`
# implementations with weight decay copy the gradients (torch/optim/sgd.py, adam.py).
OPTIMIZERS = {"sgd": (4, 4), "sgd-plain": (0, 4), "adam": (8, 8), "adamw": (8, 4)}
PRECISIONS = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "amp": 2}
# Workspaces of cuBLAS from Hopper on, of the threads of forward and backward pass: 32 MiB each
# (aten/src/ATen/cuda/CublasHandlePool.cpp).
BLAS_BYTES = 2 * 32 * 2**20
# Of a process on a GPU, beside torch's tensors: CUDA's context and modules, cuDNN, NCCL's buffers.
CONTEXT_BYTES = 0.8e9
# Errors of the sums on 16 measured points (docs/reference/gpu-rates.md) are -5 % to +4 %; blocks of
# the allocator that are not full add some percent to what a GPU must have.
LOW, HIGH = 0.95, 1.1
INDEX_BYTES = 8  # of the place of a pooled maximum, whatever the precision
# cuDNN's FFTs: tiles of 32 x 32 pixels, or the whole image up to 256 x 256, as complex numbers
# (half of them, as images are real).
TILE, LARGEST = 32, 256
# The FFT of whole images holds them twice: inferred from VGG-16, measured at three batches.
WHOLE_COPIES = 2
MOST_RANKS = 4096  # that `advice` looks at


@dataclass(frozen=True)
class Need:
    """The memory of one GPU; `low` and `high` bound what the GPU must have.

    Attributes:
        allocated: bytes of torch's tensors at the peak.
        low: bytes with small workspaces.
        high: bytes with the largest workspaces, CUDA's context and fragmentation.
        moment: `update`, `backward` or `search`: when the peak is.
        parts: bytes at the peak by cause: weights, gradients, optimizer, activations, copies,
            workspace.
    """

    allocated: float
    low: float
    high: float
    moment: str
    parts: dict[str, float]


def need(
    shape: Shape,
    batch: int,
    precision: str = "fp32",
    optimizer: str = "sgd",
    *,
    channels_last: bool = False,
) -> Need:
    """Return the memory that a training on one GPU needs.

    Args:
        shape: the model.
        batch: images per rank and step.
        precision: see `Setup`.
        optimizer: `sgd` (with momentum), `sgd-plain`, `adam` or `adamw`; with weight decay.
        channels_last: whether images have that layout, for which cuDNN tries no FFT.

    Raises:
        UsageError: The precision or the optimizer is unknown, or the batch is below 1.
    """
    for name, value, known in (
        ("precision", precision, PRECISIONS),
        ("optimizer", optimizer, OPTIMIZERS),
    ):
        if value not in known:
            raise UsageError(f"unknown {name} {value!r}", f"choose one of {', '.join(known)}")
    if batch < 1:
        raise UsageError(f"batch {batch} is no batch", "give 1 or more images")
    searches = PRECISIONS[precision] == PRECISIONS["fp32"] and not channels_last
    moments = list(_moments(shape, batch, precision, optimizer, searches=searches))
    moment, parts = max(moments, key=_total)
    least = max(_total(one) for one in moments if one[0] != "search")
    allocated = sum(parts.values())
    return Need(allocated, LOW * least, HIGH * allocated + CONTEXT_BYTES, moment, parts)



@dataclass(frozen=True)
class Advice:
    """How to train where one GPU has so much memory.

    Attributes:
        way: `data parallel`, `fsdp`, `pipeline` or `tensor parallel`.
        why: the reasons, in words.
        need: bytes of a rank in that way, at least; None where this model does not say it.
    """

    way: str
    why: str
    need: float | None


def advice(
    shape: Shape,
    batch: int,
    memory_bytes: float,
    ranks: int,
    link_bps: float,
    precision: str = "fp32",
    optimizer: str = "sgd",
) -> Advice:
    """Return how to train a model on GPUs of a size, by what each way needs and sends.

    Args:
        shape: the model.
        batch: images per rank and step.
        memory_bytes: memory of a GPU.
        ranks: GPUs, each on a link of its own.
        link_bps: rate of the link between them, bit/s.
        precision: see `Setup`.
        optimizer: see `need`.
    """
    whole = need(shape, batch, precision, optimizer)
    of = f"{shape.name} with batch {batch}, {precision} and {optimizer}"
    room = f"of the GPU's {_gb(memory_bytes)}"
    if whole.low <= memory_bytes:
        averaged = 8 * 2 * (ranks - 1) / ranks * 4 * shape.parameters / link_bps
        why = f"{of} needs {_gb(whole.low)} to {_gb(whole.high)} {room}; "
        if whole.high > memory_bytes:
            why += "it may not have room for the fastest convolutions; "
        why += f"each step averages gradients, {averaged:.2g} s at {format_rate(link_bps)}"
        return Advice("data parallel", why, whole.low)
    over = f"{of} needs {_gb(whole.low)} or more {room}"
    halves = (batch >> by for by in range(1, batch.bit_length()))
    fits = [b for b in halves if need(shape, b, precision, optimizer).low <= memory_bytes]
    over += f" (batch {fits[0]} fits)" if fits else " (no batch fits)"
    # FSDP gathers weights for both passes and scatters gradients; a pipeline sends activations on
    # and their gradients back.
    crossing = min(layer.outputs for layer in _middle(shape))
    passed = 2 * batch * crossing * PRECISIONS[precision]
    for count in range(max(2, ranks), MOST_RANKS + 1):
        gathered = (count - 1) / count * 12 * shape.parameters
        shard, stage = _divided(shape, batch, precision, optimizer, count)
        ways = [(gathered, "fsdp", shard), (passed, "pipeline", stage)]
        if fitting := [way for way in ways if way[2] <= memory_bytes]:
            _, name, least = min(fitting)
            on = f"{'' if count == ranks else 'it takes '}{count} ranks"
            why = (
                f"{over}; {on} with {_gb(least)} each; a rank sends {_gb(gathered)} a step by "
                f"fsdp, {8 * gathered / link_bps:.2g} s at {format_rate(link_bps)}, and "
                f"{_gb(passed)}, {8 * passed / link_bps:.2g} s, in a pipeline"
            )
            return Advice(name, why, least)
    why = (
        f"{over}, and neither a shard with its largest layer nor a pipeline's stage fits: divide "
        "the layers themselves, within a node, since each of them then sums its activations over "
        "the ranks in both passes; job imagenet has no framework for it"
    )
    return Advice("tensor parallel", why, None)


def _divided(
    shape: Shape, batch: int, precision: str, optimizer: str, ranks: int
) -> tuple[float, float]:
    """Return the bytes of a rank at least, by FSDP and in a pipeline."""
    per_weight = 8 + OPTIMIZERS[optimizer][0]
    largest = max(sum(layer.tensors) for layer in shape.layers)
    kept = max(
        parts["activations"] + parts["copies"]
        for _, parts in _moments(shape, batch, precision, optimizer, searches=False)
        if "copies" in parts
    )
    # Both hold the largest layer: FSDP its gathered weights and gradients, beside its shard.
    shard = per_weight * shape.parameters / ranks + 8 * largest + kept
    stage = per_weight * max(shape.parameters / ranks, largest) + kept / ranks
    return LOW * shard + BLAS_BYTES, LOW * stage + BLAS_BYTES


def _middle(shape: Shape) -> list[Layer]:
    """Return the layers from a quarter to three quarters of the multiply-adds."""
    done = itertools.accumulate(layer.macs for layer in shape.layers)
    quarter = shape.macs / 4
    found = [
        layer
        for layer, sum_ in zip(shape.layers, done, strict=True)
        if quarter <= sum_ <= 3 * quarter and layer.outputs
    ]
    return found or list(shape.layers)


def _gb(count: float) -> str:
    return f"{count / 1e9:.3g} GB"


def _total(moment: tuple[str, dict[str, float]]) -> float:
    return sum(moment[1].values())


def _moments(
    shape: Shape, batch: int, precision: str, optimizer: str, *, searches: bool
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield bytes by cause at each moment that may be the peak."""
    width, (state, temporary) = PRECISIONS[precision], OPTIMIZERS[optimizer]
    weights = 4.0 * shape.parameters
    first = shape.layers[0].kept_bytes * batch  # the images
    halved = width == 2
    update = {"gradients": weights, "optimizer": shape.parameters * (state + temporary)}
    yield "update", {"weights": weights, **update, "activations": first, "workspace": BLAS_BYTES}
    kept = [layer.kept_bytes for layer in shape.layers]
    if halved:
        pooled = [layer.outputs * INDEX_BYTES for layer in shape.layers]
        # What a pooling layer keeps is places alone, if its input is another layer's output.
        kept = [one if one == places else one / 2 for one, places in zip(kept, pooled, strict=True)]
    before = list(itertools.accumulate(kept))
    behind = weights
    filters = _workspaces(shape.name, batch) if searches else {}
    for layer, activations in zip(shape.layers, before, strict=True):
        behind -= 4 * sum(layer.tensors)
        parts = {
            "weights": weights,
            "gradients": behind + 4 * sum(layer.tensors),
            "optimizer": float(shape.parameters * state),
            # With the gradients of this layer's output and input.
            "activations": (activations + 2 * layer.outputs * width) * batch
            + (first if halved else 0),
            "copies": weights / 2 if halved else 0.0,
            "workspace": BLAS_BYTES,
        }
        yield "backward", parts
        if layer.name in filters:
            workspace = BLAS_BYTES + filters[layer.name]
            yield "search", parts | {"gradients": behind, "optimizer": 0.0, "workspace": workspace}


def _workspaces(model: str, batch: int) -> dict[str, float]:
    """Return the bytes of the largest FFT for each convolution of a model of the shipped table."""
    found = {}
    for name, given, made, side, kernel in _convolutions().get(model, []):
        per_tile = TILE * (TILE // 2 + 1) * 8
        tiles = math.ceil(side / (TILE - kernel + 1)) ** 2
        found[name] = float(per_tile * (given * made + batch * tiles * (given + made)))
        padded = side + kernel - 1
        if padded <= LARGEST:
            whole = 2 ** math.ceil(math.log2(padded))
            spectrum = whole * (whole // 2 + 1) * 8
            images = WHOLE_COPIES * batch * (given + made)
            found[name] = max(found[name], float(spectrum * (given * made + images)))
    return found


@cache
def _convolutions() -> dict[str, list[tuple[str, int, int, int, int]]]:
    data = files("gpubed.prediction").joinpath("data/convolutions.json.gz").read_bytes()
    found: dict[str, list[tuple[str, int, int, int, int]]] = json.loads(gzip.decompress(data))
    return found

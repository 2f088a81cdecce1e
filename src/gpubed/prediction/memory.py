"""The GPU memory that a training needs, and how to train where it does not fit.

The largest of three moments counts, each a sum of tensors that torch holds at once:

- `update`: weights, gradients, the optimizer's state and its temporary copies;
- `backward`, at each layer: weights, state, gradients of the layers behind, what autograd keeps of
  the layers before, and, under autocast, the weights' copies of two bytes;
- `search`, in the first step with `torch.backends.cudnn.benchmark`, at each convolution: the same
  without state, and the workspace of the largest algorithm that cuDNN tries, in fp32 an FFT. With
  less room cuDNN tries smaller ones (torch, aten/src/ATen/native/cudnn/Conv_v8.cpp), so it bounds
  what is used, not what is needed.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from gpubed.core.errors import UsageError
from gpubed.core.units import format_rate
from gpubed.prediction.model import Setup
from gpubed.prediction.shapes import Shape, shape

# Bytes per weight of the optimizer's state, and of temporaries of its step: torch's `foreach`
# implementations copy the gradients to add weight decay (torch/optim/sgd.py, adam.py).
OPTIMIZERS = {"sgd": (4, 4), "sgd-plain": (0, 4), "adam": (8, 8), "adamw": (8, 4)}
PRECISIONS = {"fp32": 4, "tf32": 4, "fp16": 2, "bf16": 2, "amp": 2}
# Workspaces of cuBLAS from Hopper on, 32 MiB for each of the threads of forward and backward pass
# (torch, aten/src/ATen/cuda/CublasHandlePool.cpp).
BLAS_BYTES = 2 * 32 * 2**20
# Beside torch's tensors, about: CUDA's context and modules, NCCL's buffers.
CONTEXT_BYTES = 0.8e9
# The sums miss the 16 points of docs/reference/gpu-rates.md by -5 % to +4 %; fragmentation adds.
LOW, HIGH = 0.95, 1.1
INDEX_BYTES = 8  # of the place of a pooled maximum, whatever the precision
# cuDNN's FFTs are of tiles of 32 x 32 pixels, or of whole images up to 256 x 256; the latter hold
# images twice (inferred from VGG-16 at three batches).
TILE, LARGEST, WHOLE_COPIES = 32, 256, 2
MOST_RANKS = 4096


@dataclass(frozen=True)
class Need:
    """The memory of one GPU; `low` and `high` bound what the GPU must have.

    Attributes:
        allocated: bytes of torch's tensors at the peak (`max_memory_allocated`).
        low: bytes with small workspaces and CUDA's context.
        high: bytes with the largest workspaces, CUDA's context and fragmentation.
        moment: `update`, `backward` or `search`.
        parts: bytes at the peak by cause: weights, gradients, optimizer, activations, copies,
            workspace.
    """

    allocated: float
    low: float
    high: float
    moment: str
    parts: dict[str, float]


def need(
    model: Shape,
    batch: int,
    precision: str = "fp32",
    optimizer: str = "sgd",
    *,
    channels_last: bool = False,
) -> Need:
    """Return the memory that a training on one GPU needs.

    Args:
        model: its shape.
        batch: images per rank and step.
        precision: see `Setup`.
        optimizer: `sgd` (with momentum), `sgd-plain`, `adam` or `adamw`; with weight decay.
        channels_last: whether images have that layout, for which cuDNN has no FFT.

    Raises:
        UsageError: The precision or the optimizer is unknown, or the batch is below 1.
    """
    if precision not in PRECISIONS:
        raise UsageError(f"unknown precision {precision!r}", f"choose of {', '.join(PRECISIONS)}")
    if optimizer not in OPTIMIZERS:
        raise UsageError(f"unknown optimizer {optimizer!r}", f"choose of {', '.join(OPTIMIZERS)}")
    if batch < 1:
        raise UsageError(f"batch {batch} is no batch", "give 1 or more images")
    searches = PRECISIONS[precision] == 4 and not channels_last
    moments = list(_moments(model, batch, precision, optimizer, searches=searches))
    sums = [sum(parts.values()) for _, parts in moments]
    peak = max(sums)
    least = max(s for s, (moment, _) in zip(sums, moments, strict=True) if moment != "search")
    return Need(
        peak, LOW * least + CONTEXT_BYTES, HIGH * peak + CONTEXT_BYTES, *moments[sums.index(peak)]
    )


def _moments(
    model: Shape, batch: int, precision: str, optimizer: str, *, searches: bool
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield each moment that may be the peak, with its bytes by cause."""
    width, (state, temporary) = PRECISIONS[precision], OPTIMIZERS[optimizer]
    weights, halved = 4.0 * model.parameters, width == 2
    images = model.layers[0].kept_bytes * batch
    yield (
        "update",
        {
            "weights": weights,
            "gradients": weights,
            "optimizer": model.parameters * (state + temporary),
            "activations": images,
            "workspace": BLAS_BYTES,
        },
    )
    workspaces = _workspaces(model.name, batch) if searches else {}
    kept, behind = images if halved else 0.0, weights
    for layer in model.layers:
        # A pooling layer keeps places, as its input is another layer's output.
        is_places = layer.kept_bytes == layer.outputs * INDEX_BYTES
        kept += batch * layer.kept_bytes / (2 if halved and not is_places else 1)
        behind -= 4 * sum(layer.tensors)
        parts = {
            "weights": weights,
            "gradients": behind + 4 * sum(layer.tensors),
            "optimizer": float(model.parameters * state),
            # With the gradients of this layer's output and input.
            "activations": kept + batch * 2 * layer.outputs * width,
            "copies": weights / 2 if halved else 0.0,
            "workspace": BLAS_BYTES,
        }
        yield "backward", parts
        if layer.name in workspaces:
            workspace = BLAS_BYTES + workspaces[layer.name]
            yield "search", parts | {"gradients": behind, "optimizer": 0.0, "workspace": workspace}


def _workspaces(model: str, batch: int) -> dict[str, float]:
    """Return the bytes of the largest FFT of each convolution of a model of the shipped table."""
    found = {}
    for name, given, made, side, kernel in _convolutions(model):
        tiles = math.ceil(side / (TILE - kernel + 1)) ** 2
        sizes = [_spectrum(TILE) * (given * made + batch * tiles * (given + made))]
        if (padded := side + kernel - 1) <= LARGEST:
            whole = _spectrum(2 ** math.ceil(math.log2(padded)))
            sizes.append(whole * (given * made + WHOLE_COPIES * batch * (given + made)))
        found[name] = float(max(sizes))
    return found


@cache
def _convolutions(model: str) -> list[tuple[str, int, int, int, int]]:
    data = files("gpubed.prediction").joinpath("data/convolutions.csv.gz").read_bytes()
    rows = csv.reader(gzip.decompress(data).decode().splitlines())
    return [
        (name, int(given), int(made), int(side), int(kernel))
        for known, name, given, made, side, kernel in rows
        if known == model
    ]


def _spectrum(side: int) -> int:
    """Return the bytes of a real square's complex spectrum, of which half is kept."""
    return side * (side // 2 + 1) * 8


def advice(
    setup: Setup, memory_bytes: float, step_s: float, optimizer: str = "sgd"
) -> tuple[str, str]:
    """Return how to train, and why: `data parallel`, `fsdp`, `pipeline` or `tensor parallel`.

    Args:
        setup: the training; its `link_bps` is that of each rank.
        memory_bytes: memory of a GPU.
        step_s: seconds of a step of a GPU that has room for it.
        optimizer: see `need`.
    """
    model, batch, precision = setup.shape or shape(setup.model), setup.batch, setup.precision
    whole = need(model, batch, precision, optimizer)
    said = f"{setup.model} with batch {batch}, {precision} and {optimizer}"
    on_link = f"at {format_rate(setup.link_bps)}"
    if whole.low <= memory_bytes:
        said += f" needs {_gb(whole.low)} to {_gb(whole.high)} of the GPU's {_gb(memory_bytes)}"
        if whole.high > memory_bytes:
            said += ", perhaps without room for the fastest convolutions"
        seconds = 8 * 8 * (setup.ranks - 1) / setup.ranks * model.parameters / setup.link_bps
        return "data parallel", f"{said}; gradients take {seconds:.2g} s of a step {on_link}"
    smaller = (batch >> by for by in range(1, batch.bit_length()))
    fits = (n for n in smaller if need(model, n, precision, optimizer).low <= memory_bytes)
    said += f" does not fit the GPU's {_gb(memory_bytes)}: it needs {_gb(whole.low)} or more "
    said += f"({next(fits, 'no')} images fit)"
    moments = _moments(model, batch, precision, optimizer, searches=False)
    kept = max(parts["activations"] + parts.get("copies", 0) for _, parts in moments)
    done = zip(model.layers, itertools.accumulate(one.macs for one in model.layers), strict=True)
    middle = next(layer.outputs for layer, macs in done if 2 * macs >= model.macs)
    largest = max(sum(layer.tensors) for layer in model.layers)
    per_weight = 8 + OPTIMIZERS[optimizer][0]
    for ranks in range(max(2, setup.ranks), MOST_RANKS):
        # FSDP gathers weights for both passes, and scatters gradients. A pipeline sends activations
        # on and their gradients back; with two microbatches a rank, filling it takes half as long
        # again. Both for as many images: a batch of each rank.
        gathered = 8 * 12 * (ranks - 1) / ranks * model.parameters / setup.link_bps
        passed = 8 * 2 * ranks * batch * middle * PRECISIONS[precision] / setup.link_bps
        shard = per_weight * model.parameters / ranks + 8 * largest + kept
        stage = per_weight * max(model.parameters / ranks, largest) + kept / ranks
        ways = [
            (max(step_s, gathered), "fsdp", shard),
            (max(1.5 * step_s, passed), "pipeline", stage),
        ]
        if fitting := [way for way in ways if _least(way[2]) <= memory_bytes]:
            _, name, held = min(fitting)
            return name, (
                f"{said}; on {ranks} ranks {_gb(_least(held))} each; for a batch of each "
                f"rank, {on_link}, fsdp sends for {gathered:.2g} s, a pipeline {passed:.2g} s"
            )
    return "tensor parallel", (
        f"{said}, and neither a shard with its largest layer nor a pipeline's stage does: divide "
        "the layers themselves, within a node, since each of them sums activations over the ranks; "
        "job imagenet cannot"
    )


def _least(held: float) -> float:
    return LOW * held + BLAS_BYTES + CONTEXT_BYTES


def _gb(count: float) -> str:
    return f"{count / 1e9:.3g} GB"

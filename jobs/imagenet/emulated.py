"""Emulated compute: sleeps for the time that a GPU would compute, and makes gradients meanwhile.

The gradients have the sizes of the model's, and become ready in the order of its backward pass, so
that Horovod and DDP fuse and average them as they do with a real model. Nothing is computed or
learned.
"""

from __future__ import annotations

import difflib
import gzip
import json
import os
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

# Names, multiply-adds and tensors of layers, from gpubed's predictions.
SHAPES = Path(__file__).with_name("shapes.json.gz")
# The backward pass takes twice the multiply-adds of the forward pass: with respect to inputs, and
# to weights.
FORWARD = 1 / 3


def fault(given: Namespace) -> str:
    """Returns the first argument that does not go with emulated compute; empty if all do."""
    if not given.emulate:
        return "time_factor and slow_node are for emulated compute: give emulate, too"
    known = _table()
    if given.model not in known:
        near = difflib.get_close_matches(given.model, known, n=5, cutoff=0.4)
        return f"no sizes of {given.model!r} are known to emulate; near it are {', '.join(near)}"
    if not given.emulated_rate:
        return "emulate needs emulated_rate, the images/s of one such GPU"
    excluded = {
        f"framework={given.framework}": given.framework in ("fsdp", "pipeline"),
        "dataset": given.dataset,
        "checkpoint": given.checkpoint,
        "precision=fp16": given.precision == "fp16",
    }
    wrong = next((name for name, is_given in excluded.items() if is_given), "")
    return f"emulate and {wrong} exclude each other: nothing is computed" if wrong else ""


def _table() -> dict[str, Any]:
    return json.loads(gzip.decompress(SHAPES.read_bytes()))


def seconds_of_step(given: Namespace) -> float:
    """Real seconds of this rank's forward and backward pass."""
    node, _, times = given.slow_node.rpartition(":")
    slowed = float(times) if node and node == os.environ.get("GPUBED_NODE") else 1.0
    return slowed * given.time_factor * given.batch_size / given.emulated_rate


class Emulated(nn.Module):
    """Stands in for a model; its output is the loss, which is 0.

    Args:
        name: Model of the table of shapes.
        seconds: Real seconds of a forward and backward pass.
    """

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__()
        layers = [(layer[1], layer[4]) for layer in _table()[name]["layers"]]
        self._seconds, self._begun = seconds, 0.0
        self.weights = nn.ParameterList()
        self._layers: list[tuple[float, list[nn.Parameter]]] = []
        self._gradients: dict[int, Tensor] = {}
        left = whole = sum(macs for macs, _ in layers) or 1
        for macs, sizes in layers:
            # Never written, so that these take no memory.
            own = [nn.Parameter(torch.empty(size)) for size in sizes]
            self.weights.extend(own)
            # Layers behind this one, and itself, are done when its gradients are ready.
            self._layers.append((left / whole, own))
            left -= macs

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Nothing: weights without a meaning need not travel."""
        return {}

    def forward(self, images: Tensor) -> Tensor:
        """Sleeps for the forward pass; the backward pass of what it returns sleeps on."""
        self._begun = time.perf_counter()
        chain = torch.zeros(1, device=images.device, requires_grad=True)
        for number, (_, own) in enumerate(self._layers):
            if own:
                chain = _Layer.apply(chain, self, number, *own)
        self._sleep_until(FORWARD)
        return chain.sum()

    def gradients(self, number: int) -> list[Tensor]:
        """The gradients of a layer, once the backward pass has come to its end there."""
        done, own = self._layers[number]
        self._sleep_until(FORWARD + (1 - FORWARD) * done)
        for weight in own:
            if id(weight) not in self._gradients:
                self._gradients[id(weight)] = torch.zeros_like(weight)
        # A new view each time, which autograd takes over without a copy.
        return [self._gradients[id(weight)].detach() for weight in own]

    def _sleep_until(self, share: float) -> None:
        # From the step's start on, so that delays do not add up.
        time.sleep(max(0.0, self._begun + share * self._seconds - time.perf_counter()))


class _Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, chain: Tensor, network: Emulated, number: int, *_: Tensor) -> Tensor:
        ctx.network, ctx.number = network, number
        return chain.clone()

    @staticmethod
    def backward(ctx: Any, chain: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return chain, None, None, *ctx.network.gradients(ctx.number)


class Still(Optimizer):
    """An optimizer that changes nothing: its time is part of the GPU's rate."""

    def __init__(self, weights: Any) -> None:
        super().__init__(weights, {"lr": 0.0})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Does nothing."""

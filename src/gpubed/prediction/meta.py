"""Writes the shape of a model as JSON; runs in an interpreter that has torch, on its meta device.

`python meta.py package:function` (or `file.py:function`) calls the function without arguments; it
returns a module, or a module and a batch of two examples. Nothing is computed or downloaded.

A shape is `{image, layers[]}`; a layer, in the order of the forward pass, is `[name, multiply-adds,
output elements, bytes kept for the backward pass, [elements of each trained tensor]]`, the middle
three per image, in fp32.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

EXAMPLES = 2  # batch normalisation refuses one
TOKENS = 128  # of an example of a language model


class _Recorder:
    """Counts what each module of a network does in a forward pass, without its children."""

    def __init__(self, network: Any) -> None:
        self.layers: dict[str, list[float]] = {}
        self.counter = FlopCounterMode(display=False)
        self._open: list[tuple[str, int, list[int]]] = []  # name, operations before, of children
        self._kept: dict[int, Any] = {w.untyped_storage()._cdata: w for w in network.parameters()}
        for name, part in network.named_modules():
            part.register_forward_pre_hook(lambda *_, name=name: self._enter(name))
            part.register_forward_hook(lambda _part, _inputs, output: self._leave(output))

    def _enter(self, name: str) -> None:
        self.layers.setdefault(name, [0, 0, 0])
        self._open.append((name, self.counter.get_total_flops(), [0]))

    def _leave(self, output: Any) -> None:
        name, before, (children,) = self._open.pop()
        operations = self.counter.get_total_flops() - before
        self.layers[name][0] += (operations - children) / 2
        if self._open:
            self._open[-1][2][0] += operations
        if isinstance(output, torch.Tensor):
            self.layers[name][1] += output.numel()

    def keep(self, tensor: Any) -> Any:
        """Count a tensor that autograd keeps, once however many operations keep it."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._kept:
            self._kept[storage._cdata] = storage
            if self._open:
                self.layers[self._open[-1][0]][2] += tensor.numel() * tensor.element_size()
        return tensor


def shape(network: Any, inputs: Any) -> dict[str, Any]:
    """Return the shape of a module from a forward pass in training mode on the meta device."""
    given = inputs if isinstance(inputs, dict) else {}
    examples = () if given else (inputs,)
    network.train()(*examples, **given)  # gives lazy modules their weights
    recorder = _Recorder(network)
    with (
        recorder.counter,
        torch.autograd.graph.saved_tensors_hooks(recorder.keep, lambda tensor: tensor),
    ):
        network(*examples, **given)
    tensors: dict[str, list[int]] = {}
    for name, weight in network.named_parameters():
        owner = name.rpartition(".")[0]
        while owner not in recorder.layers:  # its parent uses its weights without calling it
            owner = owner.rpartition(".")[0]
        if weight.requires_grad:
            tensors.setdefault(owner, []).append(weight.numel())
    rows = [
        [name, *(round(value / EXAMPLES) for value in values), tensors.get(name, [])]
        for name, values in recorder.layers.items()
        if values[0] or values[2] or name in tensors
    ]
    image = inputs.shape[-1] if isinstance(inputs, torch.Tensor) else TOKENS
    return {"image": image, "layers": rows}


def own(name: str) -> dict[str, Any]:
    """Return the shape of the module that a function makes."""
    place, _, function = name.rpartition(":")
    file = place.endswith(".py")
    sys.path.insert(0, str(Path(place).resolve().parent) if file else "")
    with torch.device("meta"):
        known = runpy.run_path(place) if file else vars(importlib.import_module(place))
        made = known[function]()
        network, inputs = made if isinstance(made, tuple) else (made, None)
        if inputs is None:
            inputs = torch.empty(EXAMPLES, 3, 224, 224)
    return shape(network.to("meta"), inputs)


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):  # what the function prints
        told = own(sys.argv[1])
    sys.stdout.write(json.dumps(told))

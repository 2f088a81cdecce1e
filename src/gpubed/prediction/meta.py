"""Prints the shape of a model as JSON; runs in an interpreter that has torch, on its meta device.

`python meta.py package:function` (or `file.py:function`) calls the function without arguments; it
returns a module, or a module and an input of two examples. `python meta.py --table` prints the
shipped table of torchvision's classification models. Nothing is computed or downloaded.

A shape is `{image, parameters, macs, layers[]}`; a layer, in the order of the forward pass, is
`[name, multiply-adds, output elements, bytes kept for the backward pass, [elements of each trained
tensor]]`, the middle three per image, in fp32.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

EXAMPLES = 2  # batch normalisation refuses one
SIZES = {"inception_v3": 299, "inception3": 299}
SEQUENCE = 128  # tokens of an example of BERT


def shape(network: Any, inputs: Any) -> dict[str, Any]:
    """Return the shape of a module from a forward pass in training mode on the meta device."""
    owners = {id(weight): name for name, part in network.named_modules() for weight in part.parameters(recurse=False)}
    weights = {weight.untyped_storage()._cdata for weight in network.parameters()}
    layers: dict[str, list[float]] = {}  # in order of the forward pass
    stack: list[str] = []
    seen: dict[int, Any] = {}
    counter = FlopCounterMode(display=False)
    started: list[int] = []
    inner: list[int] = []

    def enter(name: str) -> Any:
        def hook(*_: Any) -> None:
            layers.setdefault(name, [0, 0, 0])
            stack.append(name)
            started.append(counter.get_total_flops())
            inner.append(0)

        return hook

    def leave(name: str) -> Any:
        def hook(_part: Any, _inputs: Any, output: Any) -> None:
            stack.pop()
            whole = counter.get_total_flops() - started.pop()
            layers[name][0] += (whole - inner.pop()) / 2
            if inner:
                inner[-1] += whole
            if isinstance(output, torch.Tensor):
                layers[name][1] += output.numel()

        return hook

    def keep(tensor: Any) -> Any:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights and storage._cdata not in seen:
            seen[storage._cdata] = storage
            if stack:
                layers[stack[-1]][2] += tensor.numel() * tensor.element_size()
        return tensor

    for name, part in network.named_modules():
        part.register_forward_pre_hook(enter(name))
        part.register_forward_hook(leave(name))
    network.train()
    with counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        network(**inputs) if isinstance(inputs, dict) else network(inputs)
    tensors: dict[str, list[int]] = {}
    for weight in network.parameters():
        if weight.requires_grad:
            owner = owners[id(weight)]
            while owner not in layers:  # its parent uses its weights without calling it
                owner = owner.rpartition(".")[0]
            tensors.setdefault(owner, []).append(weight.numel())
    rows = [
        [name, *(round(value / EXAMPLES) for value in values), tensors.get(name, [])]
        for name, values in layers.items()
        if any(values[::2]) or name in tensors
    ]
    image = inputs.shape[-1] if isinstance(inputs, torch.Tensor) else SEQUENCE
    return {
        "image": image,
        "parameters": sum(math.prod(row[4:][0:0]) * 0 + sum(row[4]) for row in rows),
        "macs": sum(row[1] for row in rows),
        "layers": rows,
    }


def own(name: str) -> dict[str, Any]:
    """Return the shape of the module that a function makes.

    Raises:
        Exception: of the import, or of torch, where the module cannot be built on the meta device.
    """
    place, _, function = name.rpartition(":")
    if place.endswith(".py"):
        spec = importlib.util.spec_from_file_location(Path(place).stem, place)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.path.insert(0, str(Path(place).resolve().parent))
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, "")
        module = importlib.import_module(place)
    with torch.device("meta"):
        made = getattr(module, function)()
        network, inputs = made if isinstance(made, tuple) else (made, None)
        if inputs is None:
            inputs = torch.empty(EXAMPLES, 3, 224, 224)
    return shape(network.to("meta"), inputs)


def table() -> dict[str, Any]:
    """Return the shapes of torchvision's models, of Inception v3 without its head, and of BERT."""
    import torchvision
    from transformers import BertConfig, BertForPreTraining

    def vision(name: str, **settings: Any) -> dict[str, Any]:
        if name.startswith(("googlenet", "inception")):
            settings["init_weights"] = False
        called = "inception_v3" if name == "inception3" else name
        size = SIZES.get(name, 224)
        try:
            with torch.device("meta"):
                network = torchvision.models.get_model(called, weights=None, **settings)
        except NotImplementedError:  # RegNets read numbers from tensors while they are made
            network = torchvision.models.get_model(called, weights=None, **settings).to("meta")
        return shape(network, torch.empty(EXAMPLES, 3, size, size, device="meta"))

    found = {name: vision(name) for name in torchvision.models.list_models(module=torchvision.models)}
    found["inception3"] = vision("inception3", aux_logits=False)
    for name, large in (("bert-base", {}), ("bert-large", {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096})):
        with torch.device("meta"):
            network = BertForPreTraining(BertConfig(**large))
        words = torch.zeros(EXAMPLES, SEQUENCE, dtype=torch.long, device="meta")
        found[name] = shape(network, {"input_ids": words})
    return found


if __name__ == "__main__":
    print(json.dumps(table() if sys.argv[1] == "--table" else own(sys.argv[1]), separators=(",", ":")))

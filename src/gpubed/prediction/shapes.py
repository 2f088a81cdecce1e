"""Shapes of models: tensors, multiply-adds and activations of each layer."""

from __future__ import annotations

import difflib
import gzip
import re
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path

from typing_extensions import TypedDict  # which Pydantic asks for below Python 3.12

from gpubed.core.errors import UsageError
from gpubed.core.reading import Document

# Names of published tables, without signs between words; TensorFlow's Inception v3 has no
# auxiliary head.
_ALIASES = {
    "resnet50v1.5": "resnet50",
    "resnet50v1": "resnet50",
    "bert": "bert-base",
    "inceptionv3": "inception3",
}


class Told(TypedDict):
    """A shape as `meta.py` prints it."""

    image: int
    layers: list[tuple[str, int, int, int, list[int]]]


@dataclass(frozen=True)
class Layer:
    """One layer, in the order of the forward pass; figures are per image, in fp32.

    Attributes:
        name: of the module, such as `layer3.0.conv1`.
        macs: multiply-adds of the forward pass.
        outputs: elements of its output.
        kept_bytes: bytes that autograd keeps for the backward pass.
        tensors: elements of each trained tensor.
    """

    name: str
    macs: int
    outputs: int
    kept_bytes: int
    tensors: tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """A model: `image` is the side of its images in pixels, or the tokens of its sequences."""

    name: str
    image: int
    layers: tuple[Layer, ...]

    @cached_property
    def parameters(self) -> int:
        """Trained weights."""
        return sum(sum(layer.tensors) for layer in self.layers)

    @cached_property
    def macs(self) -> int:
        """Multiply-adds of the forward pass of an image."""
        return sum(layer.macs for layer in self.layers)

    @cached_property
    def readiness(self) -> tuple[tuple[float, int], ...]:
        """Trained tensors in the order in which the backward pass makes their gradients.

        Each has the share of the backward pass that is done when it is ready, by multiply-adds,
        and its elements.
        """
        done, found = 0, []
        for layer in reversed(self.layers):
            done += layer.macs
            found += [(done / max(self.macs, 1), size) for size in reversed(layer.tensors)]
        return tuple(found)

    @classmethod
    def of(cls, name: str, told: Told) -> Shape:
        """Return the shape that `meta.py` printed."""
        layers = (
            Layer(part, macs, outputs, kept, tuple(tensors))
            for part, macs, outputs, kept, tensors in told["layers"]
        )
        return cls(name, told["image"], tuple(layers))


def names() -> list[str]:
    """Return the models of the shipped table."""
    return sorted(_table())


def known_as(name: str) -> str:
    """Return the name of a model in the table, such as `resnet50` for `ResNet-50 v1.5`."""
    if name in _table():
        return name
    plain = re.sub(r"[-_ ]", "", name.lower())
    same = {re.sub("[-_]", "", each): each for each in _table()}
    return _ALIASES.get(plain) or same.get(plain, name)


@cache
def shape(name: str) -> Shape:
    """Return the shape of a model of the shipped table.

    Raises:
        UsageError: The table has no such model.
    """
    known = known_as(name)
    if known not in _table():
        near = difflib.get_close_matches(name.lower(), _table(), n=3, cutoff=0.4) or ["resnet50"]
        raise UsageError(
            f"the table of models has no {name!r}; near it are {', '.join(near)}",
            f"give the module that makes it: --model-from package:function --model {name}",
        )
    return Shape.of(name, _table()[known])


def from_function(place: str, python: str | None = None) -> Shape:
    """Return the shape of the model that `package:function` or `file.py:function` makes.

    The function is called on torch's meta device, without arguments; it returns a module, or a
    module and a batch of two examples.

    Args:
        place: the function.
        python: the interpreter that has torch; by default the first `python3` of PATH.

    Raises:
        UsageError: The function cannot be run there, or the model not be built.
    """
    if ":" not in place:
        raise UsageError(
            f"{place!r} names no function", "write package:function or file.py:function"
        )
    chosen = python or shutil.which("python3") or "python3"
    script = files("gpubed.prediction").joinpath("meta.py")
    try:
        done = subprocess.run(
            [chosen, str(script), place], capture_output=True, text=True, timeout=300, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{chosen} does not run {place}: {error}", "--python FILE") from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        hint = (
            "name an interpreter that has torch: --python FILE"
            if "No module named 'torch'" in last
            else "the function must return a torch module that runs on the meta device, or that "
            "module and a batch of two examples"
        )
        raise UsageError(f"{place} cannot be built on the meta device: {last}", hint)
    told = Document(done.stdout.encode(), f"the shape of {place}").json(Told)
    made = Shape.of(Path(place.partition(":")[0]).stem, told)
    if not made.macs or not made.parameters:
        raise UsageError(
            f"{place} makes a model without multiply-adds or trained weights",
            "return the module that is trained, such as one with convolutions or linear layers",
        )
    return made


@cache
def _table() -> dict[str, Told]:
    data = files("gpubed.prediction").joinpath("data/shapes.json.gz").read_bytes()
    return Document(gzip.decompress(data), "the table of models").json(dict[str, Told])

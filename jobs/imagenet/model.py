"""The networks: torchvision's classification models, by name."""

from __future__ import annotations

import difflib

import torch
from torch import Tensor, nn
from torch.nn import functional

# Image sizes of models that were not made for the usual 224 pixels.
IMAGE_SIZES = {"inception_v3": 299}
IMAGE_SIZE = 224
# Images of a step that learning rates refer to (arXiv:1706.02677).
IMAGES_OF_RATE = 256
# These models warn if `init_weights`, a slow initialisation, is not set.
_ASKING = ("googlenet", "inception_v3")
# Weights of the losses of auxiliary heads, as in the papers.
_AUXILIARY = {"InceptionOutputs": 0.4, "GoogLeNetOutputs": 0.3}
_NORMALIZING = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)
# Data types that layers compute in; see `main.round_factors` for fp32 and tf32.
PRECISIONS = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}


def names() -> list[str]:
    """All models that take an image and return a score per class."""
    import torchvision  # takes a second, and emulated compute has no use for it

    return torchvision.models.list_models(module=torchvision.models)


def image_size(name: str, asked: int | None) -> int:
    """Side of the images in pixels: the one asked for, or the one the model was made for."""
    return asked or IMAGE_SIZES.get(name, IMAGE_SIZE)


def fault(name: str, size: int, batch: int = 2) -> str:
    """Returns why a model cannot take images of this size; empty if it can.

    The model runs on torch's meta device, so that a rank fails before it reads a dataset.

    Args:
        name: The model.
        size: Side of the images in pixels.
        batch: Number of images in a batch.
    """
    known = names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=5, cutoff=0.5)
        return f"torchvision has no model {name!r}; " + (
            f"near it are {', '.join(near)}" if near else f"it has {', '.join(known)}"
        )
    if said := _refusal(name, size, 2):
        return f"image_size={size} is not for {name}: {said}"
    if batch == 1 and (said := _refusal(name, size, 1)):
        return f"batch_size=1 is not for {name} with image_size={size}: {said}; take 2 or more"
    return ""


def _refusal(name: str, size: int, images: int) -> str:
    try:
        try:
            with torch.device("meta"):
                network = make(name, 10)
        except NotImplementedError:
            # RegNets read numbers from tensors while they are made; "meta" tensors have none.
            network = make(name, 10).to("meta")
        network(torch.empty(images, 3, size, size, device="meta"))
    except (RuntimeError, AssertionError, ValueError) as error:
        return str(error)
    return ""


def make(name: str, classes: int) -> nn.Module:
    """A model with random weights for a number of classes."""
    import torchvision

    settings = {"init_weights": False} if name in _ASKING else {}
    return torchvision.models.get_model(name, weights=None, num_classes=classes, **settings)


def usual_learning_rate(network: nn.Module) -> float:
    """The learning rate for 256 images a step: 0.1, or 0.01 for models without normalisation."""
    return 0.1 if any(isinstance(part, _NORMALIZING) for part in network.modules()) else 0.01


def loss_of(outputs: Tensor | tuple[Tensor, ...], labels: Tensor, smoothing: float) -> Tensor:
    """Mean cross entropy in nat; in training, losses of auxiliary heads are added."""
    if isinstance(outputs, Tensor):
        return functional.cross_entropy(outputs, labels, label_smoothing=smoothing)
    main, *others = (
        functional.cross_entropy(scores, labels, label_smoothing=smoothing)
        for scores in outputs
        if scores is not None
    )
    return main + _AUXILIARY[type(outputs).__name__] * sum(others)


def parameters_of(network: nn.Module) -> int:
    """The number of trainable weights."""
    return sum(weight.numel() for weight in network.parameters() if weight.requires_grad)


def learning_rate(base: float, images: int, step: int, total: int, warm_up: int) -> float:
    """The learning rate of a step: linear in the images of a step (arXiv:1706.02677).

    It rises from `base` to `base * images / 256` during the warm-up, and falls to a tenth after
    1/3, 2/3 and 8/9 of the run, which are epochs 30, 60 and 80 of 90.

    Args:
        base: The learning rate for `IMAGES_OF_RATE` images a step.
        images: Images of one step, over all ranks.
        step: The step, counted from 0.
        total: Steps of the whole run.
        warm_up: Steps of the warm-up.
    """
    full = base * images / IMAGES_OF_RATE
    if step < warm_up:
        start = min(base, full)
        return start + (full - start) * (step + 1) / warm_up
    return full * 0.1 ** sum(step >= total * share for share in (1 / 3, 2 / 3, 8 / 9))

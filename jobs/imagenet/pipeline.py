"""Turns encoded images into batches on the device; threads decode while the rank computes."""

from __future__ import annotations

import io
import itertools
import queue
import random
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy
import pictures
import torch
from data import Deal, Item, Source, Unusable
from PIL import Image
from schedule import Epoch
from torch import Tensor

# ImageNet's mean and standard deviation by colour, of values from 0 to 255.
_MEAN = torch.tensor([0.485, 0.456, 0.406]) * 255
_DEVIATION = torch.tensor([0.229, 0.224, 0.225]) * 255
# Ranges of a random crop's share of the image's area, and of its aspect ratio.
_AREA, _SHAPE = (0.08, 1.0), (3 / 4, 4 / 3)
# Validation resizes the shorter side to this multiple of `size`, and crops the middle.
_MARGIN = 256 / 224
# Number of batches that are prepared in advance.
_AHEAD = 2
Decoded = tuple[numpy.ndarray, int]
Batch = tuple[Tensor, Tensor]


class Pipeline:
    """The batches of one rank.

    Args:
        source: Source of the images.
        batch: Images of a batch.
        size: Side of the images in pixels.
        threads: Number of images that are decoded at once.
        device: Device of the batches.
        place: This rank, and the number of ranks.
    """

    def __init__(
        self,
        source: Source,
        batch: int,
        size: int,
        threads: int,
        device: torch.device,
        place: tuple[int, int],
    ) -> None:
        self._source, self._batch, self._size, self._place = source, batch, size, place
        self._device, self._pool = device, ThreadPoolExecutor(threads)
        self._scale = _MEAN.to(device), _DEVIATION.to(device)

    def train(self, seed: int, epochs: Iterable[Epoch], passes: int) -> Iterator[Batch]:
        """Batches of the epochs, each epoch in its own order.

        Args:
            seed: Seed of the orders and of the crops.
            epochs: See `Schedule.epochs`.
            passes: Batches of a step.
        """
        return self._on_device(self._ahead(self._epochs(seed, epochs, passes)))

    def validation(self) -> Iterator[Batch]:
        """Each image once over all ranks; ranks have equally many batches, the last maybe empty."""
        rank, ranks = self._place
        count = -(-self._source.images // (ranks * self._batch))
        decoded = self._decoded(enumerate(self._source.share(rank, ranks)), None)
        for _ in range(count):
            yield from self._on_device(iter([_together(decoded, self._batch, self._size)]))

    def _epochs(self, seed: int, epochs: Iterable[Epoch], passes: int) -> Iterator[Batch]:
        for epoch, had, steps in epochs:
            order, count = f"{seed} {epoch}", steps * passes
            items = self._source.dealt(order, Deal(*self._place, self._batch, had))
            decoded = self._decoded(itertools.islice(items, count * self._batch), order)
            for _ in range(count):
                yield _together(decoded, self._batch, self._size)

    def _decoded(self, items: Iterable[tuple[int, Item]], seed: str | None) -> Iterator[Decoded]:
        """Decodes in threads, in order; with a seed, crops are random, else of the middle."""
        waiting: deque[Future[Decoded]] = deque()
        for place, (name, read, label) in items:
            chance = None if seed is None else random.Random(f"{seed} {place}")  # noqa: S311
            waiting.append(self._pool.submit(_decode, name, read(), label, self._size, chance))
            if len(waiting) > 2 * self._batch:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _ahead(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Prepares the next batches while this one is used."""
        ready: queue.Queue[Batch | Exception] = queue.Queue(_AHEAD)

        def fill() -> None:
            on_gpu = self._device.type == "cuda"
            try:
                if on_gpu:
                    torch.cuda.set_device(self._device)  # per thread
                for images, labels in batches:
                    # Batches in pinned memory can be copied to the GPU while it computes.
                    pinned = (images.pin_memory(), labels.pin_memory()) if on_gpu else None
                    ready.put(pinned or (images, labels))
            except Exception as error:  # raised by the consumer below
                ready.put(error)

        threading.Thread(target=fill, daemon=True).start()
        while True:
            batch = ready.get()
            if isinstance(batch, Exception):
                raise batch
            yield batch

    def _on_device(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        mean, deviation = self._scale
        for images, labels in batches:
            pixels = images.to(self._device, non_blocking=True).float()
            # The order (image, row, column, colour) is torch's channels_last already.
            yield (
                ((pixels - mean) / deviation).permute(0, 3, 1, 2),
                labels.to(self._device, non_blocking=True),
            )


def _together(decoded: Iterator[Decoded], batch: int, size: int) -> Batch:
    """The next images as one tensor; fewer, or none, at the end."""
    images, labels = numpy.zeros((batch, size, size, 3), numpy.uint8), []
    for number, (pixels, label) in enumerate(itertools.islice(decoded, batch)):
        images[number] = pixels
        labels.append(label)
    return torch.from_numpy(images[: len(labels)]), torch.tensor(labels, dtype=torch.int64)


def _decode(
    name: str, content: bytes, label: int, size: int, chance: random.Random | None
) -> Decoded:
    try:
        picture = pictures.rgb(io.BytesIO(content))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise Unusable(f"{name} cannot be read as an image: {error}") from error
    box = _random_box(*picture.size, chance) if chance else _middle(*picture.size, size)
    pixels = numpy.asarray(picture.resize((size, size), Image.Resampling.BILINEAR, box))
    return (pixels[:, ::-1] if chance and chance.random() < 0.5 else pixels), label


def _random_box(width: int, height: int, chance: random.Random) -> tuple[float, ...]:
    """A part of the image of random size, shape and place (arXiv:1409.4842)."""
    area = width * height * chance.uniform(*_AREA)
    shape = chance.uniform(*_SHAPE)
    across, down = min(width, (area * shape) ** 0.5), min(height, (area / shape) ** 0.5)
    left, top = chance.uniform(0, width - across), chance.uniform(0, height - down)
    return left, top, left + across, top + down


def _middle(width: int, height: int, size: int) -> tuple[float, ...]:
    side = min(width, height) * size / round(size * _MARGIN)
    left, top = (width - side) / 2, (height - side) / 2
    return left, top, left + side, top + side

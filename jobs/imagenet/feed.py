"""The batches that a rank trains on: one batch of noise again and again, or a dataset."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterable, Iterator

import data
import torch
from averaging import Averaging
from pipeline import Batch, Pipeline
from schedule import Epoch

# Size of ImageNet's training set, which noise stands for.
IMAGENET_IMAGES, IMAGENET_CLASSES = 1_281_167, 1000


def noise(batch: int, size: int, classes: int, device: torch.device, seed: int) -> Iterator[Batch]:
    """One batch again and again, made once and on the device: nothing is read."""
    # Drawn on the host, since random numbers of a seed depend on the device.
    drawn = torch.Generator().manual_seed(seed)
    images = torch.randn(batch, 3, size, size, generator=drawn).to(device)
    labels = torch.randint(classes, (batch,), generator=drawn).to(device)
    while True:
        yield images, labels


class Feed:
    """The batches of one rank.

    Args:
        settings: The job's arguments.
        averaging: This rank among the others.
        size: Side of the images in pixels.
        device: Device of the batches.

    Attributes:
        images: Number of images of the training set.
        classes: Number of their classes.
        held_out: The images to validate with, if any.

    Raises:
        data.Unusable: The dataset is missing or cannot be read by any of the ranks, or ranks do not
            read the same.
    """

    def __init__(
        self, settings: Namespace, averaging: Averaging, size: int, device: torch.device
    ) -> None:
        self._settings, self._size, self._device = settings, size, device
        self._replica = averaging.replica
        self.held_out: Pipeline | None = None
        if settings.dataset is None:
            self.images, self.classes = IMAGENET_IMAGES, IMAGENET_CLASSES
            return
        train, held_out = self._sources(averaging)
        self.images, self.classes = train.images, len(train.classes)
        place = averaging.replica, averaging.replicas
        rest = settings.batch_size, size, settings.loader_threads, device, place
        self._pipeline = Pipeline(train, *rest)
        # Ranks that interleave have no whole model to validate with.
        if held_out and not averaging.interleaves:
            self.held_out = Pipeline(held_out, *rest)

    def _sources(self, averaging: Averaging) -> tuple[data.Source, data.Source | None]:
        """The sources for training and validation, if all ranks read the same.

        Raises:
            data.Unusable: See `Feed`; on every rank, with the same message.
        """
        names = self._settings.dataset, self._settings.validation or self._settings.dataset
        node, wrong = os.uname().nodename, ""
        mine: list[tuple[str, str]] = []
        try:
            sources = data.splits(self._settings.dataset, self._settings.validation)
            for source in sources:
                where = f"{node}:{source.folder}" if source else node
                mine.append((where, data.told(source)))
        except (data.Unusable, OSError) as error:
            # Raised below, once the other ranks, which wait for this one, know it.
            wrong = f"{node}: {error}"
        everyone = averaging.gather((wrong, mine))
        if said := next((wrong for wrong, _ in everyone if wrong), ""):
            raise data.Unusable(said)
        for name, *told in zip(names, *(parts for _, parts in everyone), strict=True):
            if said := data.apart(name, told):
                raise data.Unusable(said)
        if averaging.local_rank == 0:
            for said in filter(None, map(data.passed_over, dict.fromkeys(names))):
                print(said, flush=True)
        return sources

    def batches(self, epochs: Iterable[Epoch], passes: int) -> Iterator[Batch]:
        """Batches without an end; see `Pipeline.train`."""
        given = self._settings
        if given.dataset is None:
            seed = given.seed + self._replica
            return noise(given.batch_size, self._size, self.classes, self._device, seed)
        return self._pipeline.train(given.seed, epochs, passes)

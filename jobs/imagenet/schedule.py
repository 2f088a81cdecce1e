"""The steps and epochs of a training, counted in steps of the present ranks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

# An epoch's number from 0, the images of its order that were taken, and its steps that are left.
Epoch = tuple[int, int, int]


class Schedule:
    """The steps of a training, from the first of this run to the last.

    The images of an epoch that were taken are the first part of its order (`data.Deal`), whatever
    the number of ranks, so any number of ranks can continue after them. The rest of an epoch, like
    a whole epoch, consists of whole steps.

    Args:
        images: Images of an epoch.
        images_per_step: Images of a step, over all ranks.
        epochs: Number of epochs; None if `steps` is given.
        steps: Number of steps, in steps of the ranks that began the training.
        kept: The place in a checkpoint: `images` that the model has seen, `epoch`, `of_epoch`
            (images of that epoch), and `images_per_step` when the training began. Checkpoints of
            former versions have `images` alone.

    Attributes:
        per_epoch: Steps of an epoch.
        begun_with: Images of a step when the training began, perhaps on other ranks.
        resumed_at: Steps of the checkpoint, in steps of the present ranks; 0 without one.
        start: The first step: that of the checkpoint, at most the last step, which always runs.
        total: Steps of the whole training.
    """

    def __init__(
        self,
        images: int,
        images_per_step: int,
        epochs: int | None,
        steps: int,
        kept: Mapping[str, int] | None,
    ) -> None:
        self.images_per_step = images_per_step
        self.per_epoch = max(1, images // images_per_step)
        kept = kept or {}
        self.begun_with = kept.get("images_per_step", images_per_step)
        self._seen = kept.get("images", 0)
        epoch, rest = divmod(self._seen // images_per_step, self.per_epoch)
        epoch, had = kept.get("epoch", epoch), kept.get("of_epoch", rest * images_per_step)
        left = (images - had) // images_per_step if had else self.per_epoch
        self._first = (epoch, had, left) if left > 0 else (epoch + 1, 0, self.per_epoch)
        if epochs:
            self.total = epochs * self.per_epoch
            self.resumed_at = (self._first[0] + 1) * self.per_epoch - self._first[2]
        else:
            # Keeps the number of images of the training as it began.
            self.total = math.ceil(steps * self.begun_with / images_per_step)
            self.resumed_at = self._seen // images_per_step
        # The last step always runs: a run that was killed may have reported no metrics.
        self.start = min(self.resumed_at, self.total - 1)

    def epochs(self) -> Iterator[Epoch]:
        """The epochs from the first step on, without an end."""
        place = self._first
        while True:
            yield place
            place = (place[0] + 1, 0, self.per_epoch)

    def ends_epoch(self, done: int) -> bool:
        """Whether an epoch ends after so many steps."""
        return self._into_next(done) >= 0 and self._into_next(done) % self.per_epoch == 0

    def place(self, done: int) -> dict[str, int]:
        """The place that a checkpoint stores after so many steps; see `kept`."""
        epoch, had, _ = self._first
        made = (done - self.start) * self.images_per_step
        if (ahead := self._into_next(done)) < 0:
            had += made
        else:
            further, ahead = divmod(ahead, self.per_epoch)
            epoch, had = epoch + 1 + further, ahead * self.images_per_step
        return {
            "images": self._seen + made,
            "epoch": epoch,
            "of_epoch": had,
            "images_per_step": self.begun_with,
        }

    def _into_next(self, done: int) -> int:
        """Steps since the end of the first epoch; negative before it."""
        return done - self.start - self._first[2]

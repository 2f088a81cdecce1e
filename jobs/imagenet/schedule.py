"""Where a training is in its epochs, and how far it goes, in steps of the ranks that are there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

# An epoch's number from 0, how many images of its order have been had, and its steps that are left.
Epoch = tuple[int, int, int]


class Schedule:
    """The steps of a training, from the one it begins with to the last one.

    What of an epoch has been had is the first part of its order (`data.Deal`), on however many
    ranks: others go on behind it. What is left is made in whole steps, as an epoch is.

    Args:
        images: Images of an epoch.
        images_per_step: Images of a step, over all ranks.
        epochs: How many are asked for; None where `steps` are.
        steps: As many steps of the ranks that it began with.
        kept: What a checkpoint says of the place: `images` that the model has seen, `epoch` and
            `of_epoch`, images of that epoch, and `images_per_step` when it began. Those of former
            versions have `images` alone.

    Attributes:
        per_epoch: Steps of an epoch.
        begun_with: Images of a step when the training began, perhaps on other ranks.
        resumed_at: Steps that a checkpoint has, as the ranks of now count them; 0 without one.
        start: The step that it begins with: there, or with the last one, which is made in any case.
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
            # As many images are due as when it began.
            self.total = math.ceil(steps * self.begun_with / images_per_step)
            self.resumed_at = self._seen // images_per_step
        # One that was killed after its last checkpoint has told nobody its figures yet.
        self.start = min(self.resumed_at, self.total - 1)

    def epochs(self) -> Iterator[Epoch]:
        """The epochs from the first step on, without an end."""
        place = self._first
        while True:
            yield place
            place = (place[0] + 1, 0, self.per_epoch)

    def ends_epoch(self, done: int) -> bool:
        """Whether an epoch is over after so many steps."""
        return self._into_next(done) >= 0 and self._into_next(done) % self.per_epoch == 0

    def place(self, done: int) -> dict[str, int]:
        """What a checkpoint says of the place after so many steps; see `kept`."""
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
        """Steps since the first epoch's end; below 0 before it."""
        return done - self.start - self._first[2]

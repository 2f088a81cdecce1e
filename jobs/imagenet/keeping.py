"""The content of a training's checkpoints, and how all ranks resume from one."""

from __future__ import annotations

import os
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import checkpoint
import torch
from averaging import Averaging
from torch import Tensor

# Required names; a file without one of them is no checkpoint of this job.
HOLDS = ("model", "classes", "images", "network", "optimizer", "random")
# Interval of messages while a checkpoint is written: a rank that is silent for two minutes is taken
# for stuck.
TELL_S = 30.0


class Failed(Exception):
    """The training cannot go on; says why."""


class Keeper:
    """Writes checkpoints on rank 0, and tells all ranks which one to resume from.

    They are in `checkpoints` of the shared storage: they outlive the run, and are not copied back
    with its folder.

    Attributes:
        failures: Number of checkpoints that could not be written.
        path: The checkpoint that it resumes from, if any.
    """

    def __init__(self, settings: Namespace, averaging: Averaging, device: torch.device) -> None:
        self._settings, self._averaging, self._device = settings, averaging, device
        self.failures = 0
        self.path: Path | None = None
        self._files: checkpoint.Checkpoints | None = None
        if settings.checkpoint is not None:
            folder = Path(os.environ.get("GPUBED_SHARED", ".")) / "checkpoints"
            folder /= settings.checkpoint
            self._files = checkpoint.Checkpoints(folder, settings.checkpoints_kept)

    @property
    def keeps(self) -> bool:
        """Whether checkpoints are wanted."""
        return self._files is not None

    def newest(self, classes: int) -> dict[str, Any] | None:
        """The content of the newest undamaged checkpoint; None without one.

        Raises:
            Failed: It is of another model, or the storage fails to read it.
        """
        found, why = None, ""
        if self._files and self._averaging.rank == 0:
            try:
                found = self._files.newest(HOLDS)
            except checkpoint.Unread as error:
                why = str(error)
        path, why = self._averaging.gather((found and found[0], why))[0]
        if why:
            raise Failed(why)
        if path is None:
            return None
        try:
            kept = found[1] if found else checkpoint.read(path, HOLDS)
        except (checkpoint.NotOne, OSError) as error:
            said = f"checkpoint {path} was read by the first rank, and cannot be read by this one"
            raise Failed(f"{said}: {error}") from error
        if (kept["model"], kept["classes"]) != (self._settings.model, classes):
            raise Failed(
                f"checkpoint {path} is of {kept['model']} with {kept['classes']} classes; "
                "name another one, or ask for this model"
            )
        if self._averaging.rank == 0:
            print(f"going on from checkpoint {path}", flush=True)
        self.path = path
        return kept

    def is_due(self, done: int, at_end: bool) -> bool:
        """Whether a checkpoint is to be written after so many steps."""
        return self._files is not None and (at_end or done % self._settings.checkpoint_steps == 0)

    def write(self, place: dict[str, int], classes: int, scaler: dict[str, Any]) -> None:
        """Lets rank 0 write a checkpoint; a failure is reported, and counted on all ranks.

        Args:
            place: The place in the data (`Schedule.place`).
            classes: Number of the model's classes.
            scaler: State of the loss scaler.
        """
        state = self._averaging.state()
        randoms = self._averaging.gather(get_random(self._device))
        said = ""
        if self._averaging.rank == 0 and self._files:
            state |= {"model": self._settings.model, "classes": classes, **place}
            state |= {"scaler": scaler, "random": randoms}
            try:
                with saying("the checkpoint is still being written"):
                    self._files.write(place["images"], state)
            except checkpoint.NotWritten as error:
                said = str(error)
                print(said, flush=True)
        self.failures += bool(self._averaging.gather(said)[0])

    def restore_random(self, kept: dict[str, Any]) -> None:
        """Restores each rank's random state if there are as many ranks as before."""
        if len(kept["random"]) == self._averaging.size:
            set_random(kept["random"][self._averaging.rank])


@contextmanager
def saying(words: str) -> Iterator[None]:
    """Prints a message from time to time while something goes on."""
    over = threading.Event()

    def say() -> None:
        while not over.wait(TELL_S):
            print(words, flush=True)

    threading.Thread(target=say, daemon=True).start()
    try:
        yield
    finally:
        over.set()


def get_random(device: torch.device) -> list[Tensor]:
    """The random state of this rank: of the host and, if it has one, of its GPU."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device).cpu()] if device.type == "cuda" else states


def set_random(states: list[Tensor]) -> None:
    """Restores a state of `get_random`."""
    torch.set_rng_state(states[0].cpu())
    if len(states) > 1 and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[1].cpu())

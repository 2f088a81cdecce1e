"""What of a training a checkpoint holds, and how all ranks go on from one."""

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

# What a training goes on by; one that is no checkpoint of this job lacks some of it.
HOLDS = ("model", "classes", "images", "network", "optimizer", "random")
# A slow disk is given its time, where a rank that is silent for two minutes is taken for stuck.
TELL_S = 30.0


class Failed(Exception):
    """The training cannot go on; says why."""


class Keeper:
    """Writes checkpoints on rank 0, and tells all ranks which one to go on from.

    They are below the shared storage's `checkpoints`: they outlive the run, and stay there when
    its folder comes back.

    Attributes:
        failures: Checkpoints that could not be written.
        path: The checkpoint that it goes on from; None where it begins.
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
        """What the newest whole checkpoint holds; None without one.

        Raises:
            Failed: It is of another model, or the storage does not give it.
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
        """Has rank 0 write a checkpoint; a disk that is full is told, and counted on all ranks.

        Args:
            place: What it has had (`Schedule.place`).
            classes: Classes of the model.
            scaler: State of the scaler of losses.
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
        """Has each rank draw what it would have drawn, where there are as many as before."""
        if len(kept["random"]) == self._averaging.size:
            set_random(kept["random"][self._averaging.rank])


@contextmanager
def saying(words: str) -> Iterator[None]:
    """Says now and again that something goes on."""
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
    """What this rank draws next: on the host and, if it has one, on its GPU."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device).cpu()] if device.type == "cuda" else states


def set_random(states: list[Tensor]) -> None:
    """Goes on drawing where `get_random` was."""
    torch.set_rng_state(states[0].cpu())
    if len(states) > 1 and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[1].cpu())

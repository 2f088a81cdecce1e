"""What a watch knows of its former looks: `watch.json`, which outlives it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from gpubed.cluster.idle import Warned
from gpubed.core import files, progress, reading
from gpubed.core.paths import ClusterPaths
from gpubed.core.reading import Missing, Unreadable
from gpubed.core.units import Moment

DAY = timedelta(hours=24)
LONGEST_WAIT = timedelta(minutes=30)
"""The longest time between a repair, or a release, that failed and the next."""


class Memory(BaseModel):
    """It; all times are aware.

    Attributes:
        amiss: What was amiss in the last look, and in which look it was first, without a break.
        quarantined: Nodes that were in quarantine when they last answered, and why.
        repairs: When repairs began that count, the last day's.
        failures: How many of them have failed since the last that did not.
        failed: Of what, and how, the last of these failed.
        wait_until: When the next one may begin; None where it need not wait.
        unfinished: Whether the last one has not come to its end.
        left: What was left to a person, who has not changed it yet.
        warned: The warning that lasts since nobody uses the cluster; None where there is none.
        told: The last word on each matter, which is not said twice.
    """

    # What a newer version added is passed over: repairs that count must not be forgotten.
    model_config = ConfigDict(extra="ignore", frozen=True)

    version: Literal[1] = 1
    amiss: dict[str, Moment] = {}
    quarantined: dict[str, str] = {}
    repairs: tuple[Moment, ...] = ()
    failures: NonNegativeInt = 0
    failed: str = ""
    wait_until: Moment | None = None
    unfinished: bool = False
    left: str = ""
    warned: Warned | None = None
    told: dict[str, str] = {}

    def by(self, now: datetime) -> Memory:
        """Return it without the times that a clock wrote which was ahead: they are none.

        By these, nothing would be repaired until they have come.
        """
        wait = self.wait_until
        kept = {
            "amiss": {what: moment for what, moment in self.amiss.items() if moment <= now},
            "repairs": tuple(moment for moment in self.repairs if moment <= now),
            "wait_until": None if wait and wait > now + LONGEST_WAIT else wait,
        }
        return self.model_copy(update=kept)

    def recent(self, now: datetime) -> tuple[datetime, ...]:
        """Return the repairs that count still."""
        return tuple(moment for moment in self.repairs if now - moment < DAY)


def load(paths: ClusterPaths) -> Memory:
    """Return what is remembered; what cannot be read counts as nothing, and is told."""
    try:
        return reading.file(paths.watch).json(Memory)
    except Missing:
        return Memory()
    except Unreadable as error:
        progress.emit("note", message=f"{error.message}: the watch begins anew")
        return Memory()


def keep(paths: ClusterPaths, memory: Memory) -> None:
    """Write what is remembered.

    Raises:
        OSError: The disk is full.
    """
    paths.state.mkdir(parents=True, exist_ok=True)
    files.write(paths.watch, memory.model_dump_json(indent=1).encode())

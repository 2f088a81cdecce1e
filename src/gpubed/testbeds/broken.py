"""What `gpubed chaos` broke, for who comes after one that was killed before it undid that.

Noted is what nodes do not tell of themselves, or not whose doing it is: a damaged checkpoint,
lost packets, a full `/var/log`. What stands still or is gone is seen, and repaired, anyway.
"""

from __future__ import annotations

import shlex

from pydantic import BaseModel, ConfigDict

from gpubed.core import files, reading, runlock
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Allocation
from gpubed.testbeds import registry
from gpubed.testbeds.breaker import Harm

_WORKS = "chaos"  # the verb, as the lock of who looks after a cluster has it


class Left(BaseModel):
    """Something that was broken, and how it is undone.

    Attributes:
        uuid: Of the cluster: another that came since has nothing of it.
        script: What undoes it on the node; may be repeated.
        by_hand: The command by which a person undoes it.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    scenario: str
    uuid: str
    node: str
    script: str
    mounts: bool = False
    by_hand: str

    def __str__(self) -> str:
        return f"`gpubed chaos {self.scenario}` on {self.node} has not been undone"


def note(paths: ClusterPaths, allocation: Allocation, scenario: str, node: str, harm: Harm) -> None:
    """Keep how something will be undone, before it is broken; of no script, nothing is kept."""
    if harm.script:
        left = Left(
            scenario=scenario,
            uuid=allocation.uuid,
            node=node,
            script=harm.script,
            mounts=harm.mounts,
            by_hand=harm.by_hand,
        )
        files.write(paths.broken, left.model_dump_json(indent=2).encode(), durable=True)


def forget(paths: ClusterPaths) -> None:
    """Keep no more of it: it was undone."""
    paths.broken.unlink(missing_ok=True)


def left(paths: ClusterPaths) -> Left | None:
    """Return what is broken, if something is and nobody is at work on that.

    Raises:
        Unreadable: Something is, and what cannot be told.
    """
    guard = runlock.holder_of(paths.watching)
    if guard and guard.verb == _WORKS:
        return None
    try:
        return reading.file(
            paths.broken, f"rm -r {shlex.quote(str(paths.broken))}, where nothing is"
        ).json(Left)
    except reading.Missing:
        return None


def undo(paths: ClusterPaths, allocation: Allocation) -> Left | None:
    """Undo what is broken; what went with its node is undone.

    Returns:
        What was undone; None where nothing was to be.

    Raises:
        GpubedError: It cannot be undone now; the hint does it by hand.
    """
    found = left(paths)
    if found is None:
        return None
    node = next((one for one in allocation.nodes if one.name == found.node), None)
    if node and allocation.uuid == found.uuid:
        breaker = registry.bound(allocation.backend, paths).breaker()
        harm = breaker.scripted(node, "true", found.script, mounts=found.mounts)
        try:
            if harm.undo:
                harm.undo()
        except GpubedError as error:
            raise GpubedError(f"{found}: {error.message}", found.by_hand) from None
    forget(paths)
    return found

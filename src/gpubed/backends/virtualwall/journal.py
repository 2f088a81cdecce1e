"""What a cluster has at a testbed, written down before and after each call.

`.gpubed/<cluster>/slice.json` names the slice before it exists and the slivers as soon
as their names are known, so that nothing is lost wherever a run is killed. It holds
no secret: no credential, no request, no manifest.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from gpubed.backends.virtualwall.aggregate import Sliver
from gpubed.backends.virtualwall.config import Config
from gpubed.core import files, reading
from gpubed.core.paths import ClusterPaths
from gpubed.core.units import Moment

FILE = "slice.json"


class Recorded(BaseModel):
    """A sliver as it was last seen."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    urn: str
    client_id: str
    allocation: str
    operational: str


class Journal(BaseModel):
    """The record of one cluster's slice.

    Attributes:
        uuid: The cluster.
        slice_urn: The slice's name at its authority.
        testbed: Where it is, and as whom.
        request: Hash of the request that the slivers were asked for with.
        calling: The call that was begun and not seen to end.
        slivers: All that the aggregate has named.
        granted_until: When they expire, as last read.
        left_out: Nodes that the testbed could not give, and its reasons.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    uuid: str
    slice_urn: str
    testbed: Config
    request: str = ""
    calling: str | None = None
    slivers: tuple[Recorded, ...] = ()
    granted_until: Moment | None = None
    left_out: dict[str, str] = {}


def load(paths: ClusterPaths) -> Journal | None:
    """Return the journal of a cluster; None when there is none that can be read."""
    try:
        return reading.file(paths.state / FILE).json(Journal)
    except reading.Unreadable:
        return None


def save(paths: ClusterPaths, journal: Journal) -> None:
    """Write the journal, whole or not at all."""
    paths.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.write(paths.state / FILE, journal.model_dump_json(indent=2).encode(), 0o600)


def forget(paths: ClusterPaths) -> None:
    """Remove the journal: nothing is there any more."""
    (paths.state / FILE).unlink(missing_ok=True)


def recorded(slivers: tuple[Sliver, ...]) -> tuple[Recorded, ...]:
    """Return slivers as a journal keeps them."""
    return tuple(
        Recorded(
            urn=sliver.urn,
            client_id=sliver.client_id,
            allocation=sliver.allocation,
            operational=sliver.operational,
        )
        for sliver in slivers
    )

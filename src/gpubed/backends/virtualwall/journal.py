"""What a cluster has at a testbed, written down before and after each call.

`.gpubed/<cluster>/slice.json` names the slice before it exists and the slivers as soon
as their names are known, so that nothing is lost wherever a run is killed. It holds
no secret: no credential, no request, no manifest. What a newer version wrote in addition is passed
over: what this one knows of it counts all the same.
"""

from __future__ import annotations

import shlex
from typing import Literal

from pydantic import BaseModel, ConfigDict

from gpubed.backends.virtualwall.aggregate import Sliver
from gpubed.backends.virtualwall.config import Config
from gpubed.core import files, reading
from gpubed.core.paths import ClusterPaths
from gpubed.core.units import Moment

FILE = "slice.json"


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Recorded(_Lenient):
    """A sliver as it was last seen."""

    urn: str
    client_id: str
    allocation: str
    operational: str


class _Aggregate(_Lenient):
    url: str
    urn: str


class _Authority(_Lenient):
    slices: str
    members: str


class Way(_Lenient):
    """How the testbed was reached, and as whom; the options of `cluster.yml` say what is what."""

    type: Literal["virtualwall"] = "virtualwall"
    aggregate: _Aggregate
    authority: _Authority
    project: str
    login: str
    passphrase_file: str | None = None
    ca: str | None = None
    old_tls: bool = False

    @classmethod
    def of(cls, config: Config) -> Way:
        """Return what of a testbed's options leads there."""
        return cls.model_validate(config.model_dump())

    def config(self) -> Config:
        """Return options of a testbed that is reached so.

        Raises:
            ValidationError: This version does not take them.
        """
        return Config.model_validate(self.model_dump())


class Journal(_Lenient):
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

    version: Literal[1] = 1
    uuid: str
    slice_urn: str
    testbed: Way
    request: str = ""
    calling: str | None = None
    slivers: tuple[Recorded, ...] = ()
    granted_until: Moment | None = None
    left_out: dict[str, str] = {}


def load(paths: ClusterPaths) -> Journal | None:
    """Return the journal of a cluster; None where there is none.

    Raises:
        Unreadable: It is damaged. Without it nobody knows what a run had begun.
    """
    path = paths.state / FILE
    aside = shlex.join(["mv", str(path), f"{path}.damaged"])
    fix = (
        f"put a backup there; or: {aside}   (the slice is known again by the cluster's state, or "
        "by its description at the authority)"
    )
    try:
        return reading.file(path, fix).json(Journal)
    except reading.Missing:
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

"""The shared storage of a cluster: a Docker volume that all nodes mount."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from docker.errors import NotFound
from docker.models.volumes import Volume

from gpubed.backends.local import daemon, ownership
from gpubed.backends.local.ownership import Owner
from gpubed.testbeds.driver import Driver, Properties


class VolumeDriver(Driver):
    """Inputs: cluster, uuid, purpose."""

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Make the volume."""
        owner, digest = Owner.of(inputs), ownership.digest({"purpose": inputs["purpose"]})
        name = owner.name(inputs["purpose"])
        with daemon.errors("make the shared volume"):
            if ownership.own(_find(inputs), owner) is None:
                # Docker's own CreatedAt is when something was last put into the folder.
                made = {ownership.MADE: datetime.now(UTC).isoformat(timespec="seconds")}
                daemon.client().volumes.create(name, labels={**owner.labels(digest), **made})
        return name, {"name": name}

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Look at the volume."""
        with daemon.errors("look at the shared volume"):
            found = ownership.ours(_find(inputs), inputs)
        return {"name": found.name} if found else None

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Keep the volume: what is on it is the user's, and goes with `gpubed down` alone."""


def _find(inputs: Properties) -> Volume | None:
    try:
        return daemon.client().volumes.get(Owner.of(inputs).name(inputs["purpose"]))
    except NotFound:
        return None

"""Dynamic resources that create nothing: they check a cloud's capacity, and look up ids.

Being resources, they run before all others, also under plain `pulumi up`, and run again only when
their inputs change.
"""

from __future__ import annotations

from typing import Any

from gpubed.backends.openstack import capacity, cloud
from gpubed.backends.openstack.capacity import Needs
from gpubed.core.errors import Refused
from gpubed.testbeds.base import Finding
from gpubed.testbeds.driver import Change, Driver, Properties


class CapacityDriver(Driver):
    """Inputs: see `Needs`. Fails if the cloud cannot provide them."""

    replace_keys = frozenset({"cloud", "region"})

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Check that the cloud can provide everything."""
        _require(Needs.model_validate(inputs), None)
        return "capacity", {}

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Return an empty result: nothing exists that could be gone."""
        return {}

    def update(self, id: str, olds: Properties, news: Properties) -> dict[str, Any]:  # noqa: A002
        """Check that the cloud can provide what is wanted in addition."""
        needs, held = Needs.model_validate(news), Needs.model_validate(olds)
        _refuse(capacity.shrunk(held, needs))
        _require(needs, held)
        return {}

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Remove nothing."""


class LookupDriver(Driver):
    """Inputs: cloud, region, name. The id is pinned: a name may mean something else tomorrow.

    Args:
        kind: `image`, or `network` for an external one.
    """

    def __init__(self, kind: str) -> None:
        self._is_image = kind == "image"

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Look the name up."""
        connection, name = cloud.connect(inputs.get("cloud"), inputs.get("region")), inputs["name"]
        with cloud.errors(f"look for {name}"):
            if self._is_image:
                what, found = "image", capacity.images(connection, name)
            else:
                what, found = "external network", capacity.external_networks(connection, name)
        if len(found) != 1:
            raise Refused(capacity.one(what, name, found, []).message, "gpubed doctor CLUSTER")
        return found[0].id, {"id": found[0].id}

    def diff(self, result: Properties, olds: Properties, news: Properties) -> Change:
        """Replace the resource only for another name."""
        return Change(replace=["name"] if olds["name"] != news["name"] else [])

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Return the pinned id; existing nodes need neither the image nor the network any more."""
        return {"id": id}

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Remove nothing."""


def _require(needs: Needs, held: Needs | None) -> None:
    connection = cloud.connect(needs.cloud, needs.region)
    with cloud.errors("look at what the cloud has"):
        found = capacity.findings(connection, needs, held)
    _refuse([finding for finding in found if not finding.ok])


def _refuse(failed: list[Finding]) -> None:
    if failed:
        raise Refused("\n  ".join(f.message for f in failed), failed[0].fix)

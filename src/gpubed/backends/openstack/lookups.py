"""Dynamic resources that make nothing: what a cloud must have, looked at and written down.

As resources they come before all others, also under plain `pulumi up`, and are looked
at again only when something else is asked for.
"""

from __future__ import annotations

from typing import Any

from gpubed.backends.openstack import availability, cloud, limits
from gpubed.backends.openstack.needs import Needs
from gpubed.core.errors import Refused
from gpubed.testbeds.base import Finding
from gpubed.testbeds.driver import Change, Driver, Properties


class CapacityDriver(Driver):
    """Inputs: see `Needs`. Fails when the cloud cannot give them."""

    replace_keys = frozenset({"cloud", "region"})

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Look whether everything can be had."""
        _require(Needs.model_validate(inputs), None)
        return "capacity", {}

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Nothing can be gone."""
        return {}

    def update(self, id: str, olds: Properties, news: Properties) -> dict[str, Any]:  # noqa: A002
        """Look whether what is wanted in addition can be had."""
        needs, held = Needs.model_validate(news), Needs.model_validate(olds)
        _refuse(limits.shrunk(held, needs))
        _require(needs, held)
        return {}

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Nothing was made."""


class _Lookup(Driver):
    """Inputs: cloud, region, name. The id is pinned: a name may mean something else tomorrow."""

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Look the name up."""
        connection = cloud.connect(inputs.get("cloud"), inputs.get("region"))
        with cloud.errors(f"look for {inputs['name']}"):
            found = self._find(connection, inputs["name"])
        if len(found) != 1:
            finding = availability.one(self._what, inputs["name"], found, [])
            raise Refused(finding.message, "gpubed doctor CLUSTER")
        return found[0].id, {"id": found[0].id}

    def diff(self, result: Properties, olds: Properties, news: Properties) -> Change:
        """Only another name is looked up again."""
        return Change(replace=["name"] if olds["name"] != news["name"] else [])

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Keep what was found: that it is gone by now does not touch nodes."""
        return {"id": id}

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Nothing was made."""

    _what: str

    def _find(self, connection: Any, name: str) -> list[Any]:
        raise NotImplementedError


class ImageDriver(_Lookup):
    """An image of the cloud."""

    _what = "image"

    def _find(self, connection: Any, name: str) -> list[Any]:
        return availability.images(connection, name)


class ExternalNetworkDriver(_Lookup):
    """The cloud's external network."""

    _what = "external network"

    def _find(self, connection: Any, name: str) -> list[Any]:
        return availability.external_networks(connection, name)


def _require(needs: Needs, held: Needs | None) -> None:
    connection = cloud.connect(needs.cloud, needs.region)
    with cloud.errors("look at what the cloud has"):
        failed = [f for f in availability.findings(connection, needs, held) if not f.ok]
    _refuse(failed)


def _refuse(failed: list[Finding]) -> None:
    if failed:
        raise Refused("\n  ".join(f.message for f in failed), failed[0].fix)

"""The drivers of the resources that a cluster has on any testbed."""

from __future__ import annotations

import uuid
from typing import Any

from gpubed.core import record, secret
from gpubed.core.paths import ClusterPaths, Project
from gpubed.testbeds.driver import Change, Driver, Properties


def driver(kind: str) -> Driver:
    """Return the driver of `identity`, `key` or `configuration`."""
    if kind == "configuration":
        from gpubed.cluster.configuration_driver import ConfigurationDriver

        return ConfigurationDriver()
    drivers: dict[str, type[Driver]] = {"identity": _IdentityDriver, "key": _KeyDriver}
    return drivers[kind]()


def _paths(inputs: Properties) -> ClusterPaths:
    return Project.find().cluster(inputs["cluster"])


class _IdentityDriver(Driver):
    """Makes the cluster's UUID once.

    The record also has the UUID, which finds resources if the state is lost or data was kept.
    """

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        made = record.uuid(_paths(inputs)) or str(uuid.uuid4())
        record.keep_uuid(_paths(inputs), made)
        return made, {"uuid": made}

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        return {"uuid": id}

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        # Resources that outlive the stack need the UUID; `gpubed down` removes the record.
        return


class _KeyDriver(Driver):
    """Makes the SSH key; replaces a lost key, also on the nodes."""

    def diff(self, result: Properties, olds: Properties, news: Properties) -> Change:
        if secret.public_key(_paths(news).private_key) != result.get("public_key"):
            return Change(update=["public_key"])
        return super().diff(result, olds, news)

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        return f"{inputs['cluster']}/key", self._result(inputs)

    def update(self, id: str, olds: Properties, news: Properties) -> dict[str, Any]:  # noqa: A002
        return self._result(news)

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        return self._result(inputs)

    def _result(self, inputs: Properties) -> dict[str, Any]:
        return {"public_key": secret.ensure_key(_paths(inputs).private_key)}

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        # A replacement may use the key already; `gpubed down` removes it.
        return

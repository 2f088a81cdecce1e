"""The resources that every cluster has, whatever its testbed.

`identity` comes first: the UUID that everything else carries; `key` is the SSH key.
`configuration` comes last: it renders the inventory, applies the roles and
verifies the result, so that `pulumi up` ends in a ready cluster.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Any

import pulumi

from gpubed.core import secret
from gpubed.core.paths import ClusterPaths, Project
from gpubed.core.reading import Unreadable
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds import identities
from gpubed.testbeds.driver import Change, Driver, Properties
from gpubed.testbeds.resources import Configuration, Identity, Key


def identity(cluster: ClusterPlan) -> dict[str, pulumi.Output[str]]:
    """Declare the cluster's identity and its SSH key; outputs are `uuid` and `public_key`."""
    inputs = {"cluster": cluster.cluster}
    made = Key("key", "gpubed", inputs).result["public_key"]
    # A preview knows nothing of a result that is still to come, and would replace all that
    # depends on it: also where the key is there, and only its resource is new.
    known = ""
    with suppress(Unreadable):  # the resource says what is wrong with it
        known = secret.public_key(_paths(inputs).private_key)
    return {
        "uuid": Identity("identity", "gpubed", inputs).result["uuid"],
        "public_key": pulumi.Output.from_input(known) if known else made,
    }


def configure(cluster: ClusterPlan, allocation: pulumi.Output[dict[str, Any]]) -> Configuration:
    """Declare the configuration of an allocation."""
    folder = Project.find().cluster(cluster.cluster).inventory

    # A testbed that runs jobs lends nothing to configure.
    configured = cluster.spec.configure and cluster.spec.backend.lends_nodes

    def wanted(data: dict[str, Any]) -> dict[str, dict[str, str]]:
        # Not in a preview of a new cluster, which has no allocation yet.
        from gpubed.configuration import roles
        from gpubed.nodes.allocation import Allocation

        return roles.fingerprints(cluster, Allocation.model_validate(data), folder)

    inputs = {
        "cluster": cluster.cluster,
        "configure": configured,
        "specification": cluster.spec.digest,
        "allocation": allocation,
        "fingerprints": allocation.apply(wanted) if configured else {},
    }
    return Configuration("configuration", "gpubed", inputs)


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
    """Makes the UUID, once: whatever else is lost, what carries it stays the cluster's own.

    It is kept in the cluster's folder, too, so that a cluster whose state is gone, or whose
    data was kept, is found again.
    """

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        made = identities.kept(_paths(inputs)) or str(uuid.uuid4())
        identities.keep(_paths(inputs), made)
        return made, {"uuid": made}

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        return {"uuid": id}

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        # `gpubed down` removes the folder; what outlives the stack needs the UUID.
        return


class _KeyDriver(Driver):
    """Makes the key; a lost one is made again, and nodes let the new one in."""

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
        # The key may already belong to a replacement: `gpubed down` removes the folder.
        return

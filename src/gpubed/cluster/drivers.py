"""Declares the resources that every cluster has, on any testbed.

`identity` comes first: it makes the UUID that all other resources carry; `key` is the SSH key.
`configuration` comes last: it renders the inventory, applies the roles and
verifies the result, so that `pulumi up` ends in a ready cluster.
"""

from __future__ import annotations

import shlex
import uuid
from contextlib import suppress
from typing import Any

import pulumi

from gpubed.core import record, secret
from gpubed.core.paths import ClusterPaths, Project
from gpubed.core.reading import Unreadable
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.driver import Change, Driver, Properties
from gpubed.testbeds.resources import Configuration, Identity, Key


def identity(cluster: ClusterPlan) -> dict[str, pulumi.Output[str]]:
    """Declare the cluster's identity and its SSH key; outputs are `uuid` and `public_key`."""
    inputs = {"cluster": cluster.cluster}
    made = Key("key", "gpubed", inputs).result["public_key"]
    # A preview does not know a future result and would replace all that depends on it, even if
    # the key exists and only its resource is new.
    known = ""
    with suppress(Unreadable):  # the resource reports the error
        known = secret.public_key(_paths(inputs).private_key)
    return {
        "uuid": Identity("identity", "gpubed", inputs).result["uuid"],
        "public_key": pulumi.Output.from_input(known) if known else made,
    }


def configure(cluster: ClusterPlan, allocation: pulumi.Output[dict[str, Any]]) -> Configuration:
    """Declare the configuration of an allocation, and export how to reach the cluster."""
    folder = Project.find().cluster(cluster.cluster).inventory

    # Testbeds that run jobs have no nodes to configure.
    configured = cluster.spec.configure and cluster.spec.backend.lends_nodes

    def wanted(data: dict[str, Any]) -> dict[str, dict[str, str]]:
        # Not called in a preview of a new cluster, which has no allocation yet.
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
    made = Configuration("configuration", "gpubed", inputs)
    # Outputs become known only after the configuration is done.
    known = pulumi.Output.all(allocation, made.result).apply(lambda both: outputs(cluster, both[0]))
    lent = ["head", "ssh_command"] if cluster.spec.backend.lends_nodes else []
    lab = ["jupyterlab_url"] if configured and cluster.spec.services.jupyterlab else []
    for name in ["state", *lent, *lab]:
        pulumi.export(name, known[name])
    return made


def outputs(cluster: ClusterPlan, granted: dict[str, Any]) -> dict[str, str]:
    """Return a stack's outputs except the allocation; they contain no token."""
    from gpubed.access import services
    from gpubed.nodes.allocation import Allocation, Cluster

    paths, allocation = _paths({"cluster": cluster.cluster}), Allocation.model_validate(granted)
    known = {"state": "ready" if cluster.spec.configure else "allocated"}
    if not allocation.nodes:
        return known
    head = allocation.head.name
    known |= {"head": head, "ssh_command": f"ssh -F {shlex.quote(str(paths.ssh_config))} {head}"}
    found = services.urls(Cluster(paths, cluster, allocation))
    return known | {f"{service['name']}_url": service["url"] for service in found}


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

    The UUID is also kept in the cluster's folder, so that resources are found again if the state is
    lost or data was kept.
    """

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        made = record.uuid(_paths(inputs)) or str(uuid.uuid4())
        record.keep_uuid(_paths(inputs), made)
        return made, {"uuid": made}

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        return {"uuid": id}

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        # `gpubed down` removes the folder; resources that outlive the stack need the UUID.
        return


class _KeyDriver(Driver):
    """Makes the SSH key; a lost key is made again, and nodes then accept the new one."""

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

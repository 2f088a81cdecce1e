"""The resources that every cluster has, whatever its testbed.

`identity` comes first: the UUID that everything else carries; `key` is the SSH key.
`configuration` comes last: it renders the inventory, applies the roles and
verifies the result, so that `pulumi up` ends in a ready cluster.
"""

from __future__ import annotations

import shutil
import uuid
from contextlib import suppress
from typing import Any

import pulumi

from gpubed.configuration import applied, inventory, roles, served_folder
from gpubed.core import secret
from gpubed.core.paths import ClusterPaths, Project
from gpubed.core.reading import Unreadable
from gpubed.nodes.allocation import Allocation
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.verification import Verification
from gpubed.resources import Configuration, Identity, Key
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds import begun, identities
from gpubed.testbeds.driver import Change, Driver, Properties
from gpubed.testbeds.specification import load_plan, load_same


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
    drivers: dict[str, type[Driver]] = {
        "identity": _IdentityDriver,
        "key": _KeyDriver,
        "configuration": _ConfigurationDriver,
    }
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


class _ConfigurationDriver(Driver):
    """Hands an allocation over: files, roles, verification."""

    def diff(self, result: Properties, olds: Properties, news: Properties) -> Change:
        """Compare with what nodes really have, so that work done by hand counts."""
        keys = {key for key in ("configure", "allocation") if olds.get(key) != news.get(key)}
        if keys:
            # In a preview, a changed allocation is not known yet.
            return Change(update=sorted(keys))
        paths, allocation = _paths(news), Allocation.model_validate(news["allocation"])
        stale = self._stale(paths, allocation, news) if news["configure"] else set()
        # By a run before this one, or by what this one did to nodes: they may be bare then, too.
        if begun.is_noted(paths) or (news["configure"] and paths.unfinished.exists()):
            stale.add("unfinished")
        if not stale:
            cluster = Cluster(paths, load_plan(paths.spec), allocation)
            stale = set() if inventory.is_rendered(cluster) else {"inventory"}
        return Change(update=sorted(stale))

    def _stale(self, paths: ClusterPaths, allocation: Allocation, news: Properties) -> set[str]:
        stale = set(applied.missing(paths, allocation, news["fingerprints"]))
        verified = None
        with suppress(Unreadable):  # then it is as if there were none
            verified = Verification.last(paths.verification)
        configured = applied.digest(paths, allocation)
        if verified is None or not verified.covers(allocation, configured):
            stale.add("verification")
        return stale

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        return f"{inputs['cluster']}/configuration", self._apply(inputs)

    def update(self, id: str, olds: Properties, news: Properties) -> dict[str, Any]:  # noqa: A002
        return self._apply(news)

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        return {}

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        paths = _paths(inputs)
        served_folder.note_former(paths)  # a `down` may be cut off, and the next verb be `up`
        inventory_files = (paths.hosts, paths.variables, paths.former_variables)
        state_files = (paths.allocation, paths.ssh_config, paths.known_hosts)
        for path in inventory_files + state_files:
            path.unlink(missing_ok=True)
        for folder in (paths.applied, paths.facts):
            shutil.rmtree(folder, ignore_errors=True)
        paths.verification.unlink(missing_ok=True)
        paths.door.unlink(missing_ok=True)

    def _apply(self, inputs: Properties) -> dict[str, Any]:
        # With all that verifies a cluster, which a program that only declares it has no need of.
        from gpubed.cluster import handover

        paths = _paths(inputs)
        # Nodes were made as the file was then: with another one now, they would not fit it.
        plan = load_same(paths.spec, inputs["specification"])
        allocation = Allocation.model_validate(inputs["allocation"])
        handover.hand_over(Cluster(paths, plan, allocation))
        return {}

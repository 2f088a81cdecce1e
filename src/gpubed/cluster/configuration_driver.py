"""Configures an allocation: files, roles, verification.

Separate from `drivers`, because a program that only declares a cluster need not import this module.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import Any

from gpubed.configuration import applied, inventory
from gpubed.core import record
from gpubed.core.paths import ClusterPaths, Project
from gpubed.core.reading import Unreadable
from gpubed.nodes.allocation import Allocation, Cluster
from gpubed.nodes.verification import Verification
from gpubed.testbeds.driver import Change, Driver, Properties
from gpubed.testbeds.specification import load_plan, require_same


class ConfigurationDriver(Driver):
    """The driver of the resource `configuration`."""

    def diff(self, result: Properties, olds: Properties, news: Properties) -> Change:
        """Compare with the present configuration of the nodes, which finds manual changes."""
        keys = {key for key in ("configure", "allocation") if olds.get(key) != news.get(key)}
        if keys:
            # In a preview, a changed allocation is unknown.
            return Change(update=sorted(keys))
        paths, allocation = _paths(news), Allocation.model_validate(news["allocation"])
        stale = set[str]()
        if news["configure"]:
            stale |= set(applied.missing(paths, allocation, news["fingerprints"]))
            verified = None
            with suppress(Unreadable):  # an unreadable verification counts as missing
                verified = Verification.last(paths.verification)
            if not (verified and verified.covers(allocation, applied.digest(paths, allocation))):
                stale.add("verification")
        unfinished = record.read(paths).unfinished
        # An earlier run, or this run's changes to nodes, may have left nodes without configuration.
        if unfinished == "nodes" or (news["configure"] and unfinished):
            stale.add("unfinished")
        if not stale:
            cluster = Cluster(paths, load_plan(paths.spec_in_use, paths.name), allocation)
            stale = set() if inventory.is_rendered(cluster) else {"inventory"}
        return Change(update=sorted(stale))

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Configure the nodes."""
        return f"{inputs['cluster']}/configuration", self._apply(inputs)

    def update(self, id: str, olds: Properties, news: Properties) -> dict[str, Any]:  # noqa: A002
        """Configure the nodes again."""
        return self._apply(news)

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Return no properties: `diff` compares."""
        return {}

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Remove the configuration's files from the cluster's folder."""
        paths = _paths(inputs)
        for path in (
            *(paths.hosts, paths.variables, paths.former_variables, paths.allocation),
            *(paths.ssh_config, paths.known_hosts, paths.verification),
        ):
            path.unlink(missing_ok=True)
        for folder in (paths.applied, paths.facts):
            shutil.rmtree(folder, ignore_errors=True)
        with record.changed(paths) as changed:
            changed.jupyterlab_port = None

    def _apply(self, inputs: Properties) -> dict[str, Any]:
        from gpubed.cluster import setup  # imports the verification, which a comparison skips

        paths = _paths(inputs)
        # Nodes were made from the specification in `inputs`; a later one may not fit them.
        plan = load_plan(paths.spec_in_use, paths.name)
        require_same(plan, inputs["specification"], paths)
        allocation = Allocation.model_validate(inputs["allocation"])
        setup.set_up(Cluster(paths, plan, allocation))
        return {}


def _paths(inputs: Properties) -> ClusterPaths:
    return Project.find().cluster(inputs["cluster"])

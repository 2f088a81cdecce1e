"""Configures an allocation: files, roles, verification.

Separate from `drivers`, so that a program that only declares a cluster need not import all this.
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
        """Compare with the present configuration of nodes, so that manual changes are noticed."""
        keys = {key for key in ("configure", "allocation") if olds.get(key) != news.get(key)}
        if keys:
            # A preview does not know a changed allocation yet.
            return Change(update=sorted(keys))
        paths, allocation = _paths(news), Allocation.model_validate(news["allocation"])
        stale = self._stale(paths, allocation, news) if news["configure"] else set()
        unfinished = record.read(paths).unfinished
        # An earlier run, or this run's own changes to nodes, may have left nodes bare.
        if unfinished == "nodes" or (news["configure"] and unfinished):
            stale.add("unfinished")
        if not stale:
            cluster = Cluster(paths, load_plan(paths.spec_in_use, paths.name), allocation)
            stale = set() if inventory.is_rendered(cluster) else {"inventory"}
        return Change(update=sorted(stale))

    def _stale(self, paths: ClusterPaths, allocation: Allocation, news: Properties) -> set[str]:
        stale = set(applied.missing(paths, allocation, news["fingerprints"]))
        verified = None
        with suppress(Unreadable):  # an unreadable one counts as missing
            verified = Verification.last(paths.verification)
        configured = applied.digest(paths, allocation)
        if verified is None or not verified.covers(allocation, configured):
            stale.add("verification")
        return stale

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Configure the nodes."""
        return f"{inputs['cluster']}/configuration", self._apply(inputs)

    def update(self, id: str, olds: Properties, news: Properties) -> dict[str, Any]:  # noqa: A002
        """Configure the nodes again."""
        return self._apply(news)

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Return nothing; `diff` does the comparison."""
        return {}

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Remove the configuration's files from the cluster's folder."""
        paths = _paths(inputs)
        inventory_files = (paths.hosts, paths.variables, paths.former_variables)
        state_files = (paths.allocation, paths.ssh_config, paths.known_hosts)
        for path in inventory_files + state_files:
            path.unlink(missing_ok=True)
        for folder in (paths.applied, paths.facts):
            shutil.rmtree(folder, ignore_errors=True)
        paths.verification.unlink(missing_ok=True)
        with record.changed(paths) as known:
            known.jupyterlab_port = None

    def _apply(self, inputs: Properties) -> dict[str, Any]:
        # Imports all of the verification, which a comparison does not need.
        from gpubed.cluster import setup

        paths = _paths(inputs)
        # Nodes were made from the file as it was then; a later version may not fit them.
        plan = load_plan(paths.spec_in_use, paths.name)
        require_same(plan, inputs["specification"], paths)
        allocation = Allocation.model_validate(inputs["allocation"])
        setup.set_up(Cluster(paths, plan, allocation))
        return {}


def _paths(inputs: Properties) -> ClusterPaths:
    return Project.find().cluster(inputs["cluster"])

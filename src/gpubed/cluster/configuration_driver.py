"""Hands an allocation over: files, roles, verification.

With all that configures a cluster, which a program that only declares it, in `drivers`, has no
need of.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import Any

from gpubed.configuration import applied, inventory, served_folder
from gpubed.core import record
from gpubed.core.paths import ClusterPaths, Project
from gpubed.core.reading import Unreadable
from gpubed.nodes.allocation import Allocation
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.verification import Verification
from gpubed.testbeds.driver import Change, Driver, Properties
from gpubed.testbeds.specification import load_plan, require_same


class ConfigurationDriver(Driver):
    """Of the resource `configuration`."""

    def diff(self, result: Properties, olds: Properties, news: Properties) -> Change:
        """Compare with what nodes really have, so that work done by hand counts."""
        keys = {key for key in ("configure", "allocation") if olds.get(key) != news.get(key)}
        if keys:
            # In a preview, a changed allocation is not known yet.
            return Change(update=sorted(keys))
        paths, allocation = _paths(news), Allocation.model_validate(news["allocation"])
        stale = self._stale(paths, allocation, news) if news["configure"] else set()
        unfinished = record.read(paths).unfinished
        # By a run before this one, or by what this one did to nodes: they may be bare then, too.
        if unfinished == "nodes" or (news["configure"] and unfinished):
            stale.add("unfinished")
        if not stale:
            cluster = Cluster(paths, load_plan(paths.spec_in_use, paths.name), allocation)
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
        """Apply it."""
        return f"{inputs['cluster']}/configuration", self._apply(inputs)

    def update(self, id: str, olds: Properties, news: Properties) -> dict[str, Any]:  # noqa: A002
        """Apply it anew."""
        return self._apply(news)

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Leave the comparison to `diff`."""
        return {}

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Remove what is written of it."""
        paths = _paths(inputs)
        served_folder.note_former(paths)  # a `down` may be cut off, and the next verb be `up`
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
        # With all that verifies a cluster, which a comparison has no need of.
        from gpubed.cluster import handover

        paths = _paths(inputs)
        # Nodes were made as the file was then: with another one now, they would not fit it.
        plan = load_plan(paths.spec_in_use, paths.name)
        require_same(plan, inputs["specification"], paths)
        allocation = Allocation.model_validate(inputs["allocation"])
        handover.hand_over(Cluster(paths, plan, allocation))
        return {}


def _paths(inputs: Properties) -> ClusterPaths:
    return Project.find().cluster(inputs["cluster"])

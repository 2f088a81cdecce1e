"""The operations of a cluster on SLICES."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from functools import cached_property

from gpubed.backends.slices.config import Config
from gpubed.backends.slices.node import NodeDriver
from gpubed.backends.slices.tool import Machine, Tool, hours
from gpubed.core.errors import GpubedError
from gpubed.core.text import nearest_name
from gpubed.nodes.allocation import Allocation
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds.base import Existing, Finding, Identity, Lease, Testbed
from gpubed.testbeds.driver import Driver


class SlicesTestbed(Testbed):
    """The machines of one experiment."""

    @cached_property
    def _tool(self) -> Tool:
        return Tool(Config.of(self.reach.specification.backend), self.paths.name)

    def doctor(self, spec: ClusterSpec) -> list[Finding]:
        """Check the command, its login, and the names in the specification."""
        return list(_findings(spec))

    def driver(self, kind: str) -> Driver:
        """Return the driver of a node."""
        return NodeDriver(self.paths) if kind == "node" else super().driver(kind)

    def describe(self, allocation: Allocation) -> dict[str, str]:
        """Return the state of each node: ready, missing, or SLICES' own status."""
        states = {machine.id: machine.status for machine in self._lent(allocation)}
        states = {id_: "ready" if state == "up" else state for id_, state in states.items()}
        return {node.name: states.get(node.id, "missing") for node in allocation.nodes}

    def identity(self) -> Identity:
        """Return project, experiment and infrastructure, by which machines are listed."""
        config, name = Config.of(self.reach.specification.backend), self._tool.experiment
        called = f"experiment {name} of project {config.project} at {config.infra}"
        return Identity(f"{config.project} {name} {config.infra}", called)

    def existing(self) -> list[Existing]:
        """List the experiment's machines with the cluster's name, of any UUID."""
        named = re.compile(rf"{re.escape(self.paths.name)}-([0-9a-f-]{{36}})-(.+)")
        return [
            Existing("node", machine.friendly_name, machine.id, match[1], node=match[2])
            for machine in self._tool.machines()
            if (match := named.fullmatch(machine.friendly_name))
        ]

    def remove(self, thing: Existing) -> None:
        """Remove a machine, and wait until it is gone."""
        self._tool.destroy(thing.name)

    def lease(self, allocation: Allocation) -> Lease:
        """Return the end of the lease, which is that of the first machine to expire."""
        ends = [machine.expires_at for machine in self._lent(allocation) if machine.expires_at]
        return Lease(min(ends, default=None))

    def renew(self, allocation: Allocation, until: datetime) -> Lease:
        """Extend each machine that expires earlier, in whole hours, and its experiment with it."""
        for machine in self._lent(allocation):
            if machine.expires_at is None or machine.expires_at < until:
                self._tool.run("bi", "extend", machine.friendly_name, "--duration", hours(until))
        return self.lease(allocation)

    def refusals(self, plan: ClusterPlan) -> list[Finding]:
        """Return why the command is unusable, and names that SLICES does not list."""
        return [finding for finding in _findings(plan.spec) if not finding.ok]

    fits = refusals  # SLICES does not list free machines

    def _lent(self, allocation: Allocation) -> list[Machine]:
        ids = {node.id for node in allocation.nodes}
        return [machine for machine in self._tool.machines() if machine.id in ids]


def _findings(spec: ClusterSpec) -> Iterator[Finding]:
    config = Config.of(spec.backend)
    tool = Tool(config, spec.name)
    flavors = {config.flavors.get(group.name, config.flavor) for group in spec.nodes}
    looks = {
        "project": ({config.project}, ("project", "list")),
        "infra": ({config.infra}, ("bi", "infra", "list")),
        "flavor": (flavors, ("bi", "flavor", "list")),
    }
    try:
        yield Finding("slices.tool", True, tool.run("--version").strip())
        for kind, (wanted, words) in looks.items():
            known = tool.names(*words)
            for name in sorted(wanted - {*known}):
                why = f"SLICES lists no {kind} {name!r}: {nearest_name(name, known)}"
                yield Finding(f"slices.{kind}", False, why, f"slices {' '.join(words)}")
            if wanted <= {*known}:
                yield Finding(f"slices.{kind}", True, f"{kind} {', '.join(sorted(wanted))}")
    except GpubedError as error:
        yield Finding("slices.tool", False, error.message, error.hint)

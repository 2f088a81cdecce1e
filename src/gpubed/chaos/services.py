"""Services that end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubed.chaos.scenario import Ground, Held, Scenario, Status, Unfit
from gpubed.configuration import roles
from gpubed.nodes.allocation import Node
from gpubed.testbeds.breaker import Harm


class StopService(Scenario):
    """A service of the head that somebody stopped."""

    name = "stop-service"
    does = "a unit that roles keep running there ends, JupyterLab for one, and nothing starts it"
    holds = ("`gpubed status` names the unit",)
    seen_as = frozenset({"ready"})

    @classmethod
    def nodes(cls, ground: Ground) -> Sequence[Node]:
        """Return the head, which has most services."""
        if not ground.cluster.plan.spec.configure:
            raise Unfit("its nodes are not configured (configure: false), and have no services")
        return [ground.cluster.allocation.head]

    @property
    def _unit(self) -> str:
        units = roles.units(self.ground.cluster.plan)
        own = [u for u in units if u.node in (self.node.name, None) and not u.where_enabled]
        # The head's own before those that each node has.
        return max(own, key=lambda unit: (unit.node is not None, unit.name)).name

    def title(self) -> str:
        """Name the unit, too."""
        return f"{self.name} on {self.node.name}: {self._unit} ends, and nothing starts it again"

    def harm(self) -> Harm:
        """Stop it."""
        stop, start = f"systemctl stop {self._unit}", f"systemctl start {self._unit}"
        return self.ground.breaker.scripted(self.node, stop, start)

    def meanwhile(self, status: Status) -> Iterator[Held]:
        """Check that it is missed."""
        yield from super().meanwhile(status)
        stopped = [(one["unit"], one["node"]) for one in status["stopped"]]
        what = f"`gpubed status` says that {self._unit} is stopped"
        yield Held(what, (self._unit, self.node.name) in stopped)

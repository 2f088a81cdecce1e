"""Simulated GPUs that fail."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpubed.chaos.scenario import Ground, Held, Scenario, Status, Unfit
from gpubed.configuration import health
from gpubed.nodes.allocation import Node
from gpubed.testbeds.breaker import Harm

# Those that leave no message in the kernel's log, which nothing but a restart takes back.
_FAULTS = ("library-mismatch", "throttled")


class GpuFault(Scenario):
    """A GPU that is slowed down, or that its driver's library does not know any more."""

    name = "gpu-fault"
    does = f"a simulated GPU of it fails: {' or '.join(_FAULTS)}"
    holds = ("the node says why jobs leave it out", "afterwards they take it again")
    seen_as = frozenset({"failing", "quarantined"})
    by_itself = True

    @classmethod
    def nodes(cls, ground: Ground) -> Sequence[Node]:
        """Return the nodes that pretend to have GPUs and look after themselves."""
        pretending = {node.name for node in ground.cluster.plan.nodes if node.simulate}
        if not (pretending and ground.cluster.plan.spec.configure):
            raise Unfit("none of its nodes pretends to have GPUs and is configured")
        return [node for node in ground.cluster.allocation.nodes if node.name in pretending]

    def harm(self) -> Harm:
        """Let it fail as `gpubed-simulate` can."""
        self._fault = self.draw.choice(_FAULTS)
        return self.ground.breaker.scripted(
            self.node, f"gpubed-simulate fault {self._fault}", "gpubed-simulate heal"
        )

    def meanwhile(self, status: Status) -> Iterator[Held]:
        """Check that the node says why."""
        yield from super().meanwhile(status)
        row = next(row for row in status["nodes"] if row["name"] == self.node.name)
        yield Held(
            f"{self.node.name} says why jobs leave it out", bool(row["reason"]), row["reason"]
        )

    def afterwards(self) -> Iterator[Held]:
        """Take it out of quarantine, which it may have gone into by itself, and check that."""
        cluster = self.ground.cluster
        found = health.requalify(cluster.paths, cluster.allocation, self.node.name)
        what = f"jobs take {self.node.name} again"
        yield Held(what, found.state == "well", found.reason)

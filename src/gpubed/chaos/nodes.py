"""Nodes that die, vanish, stand still, or let nobody in."""

from __future__ import annotations

from gpubed.chaos.scenario import Scenario
from gpubed.testbeds.breaker import Harm


class KillNode(Scenario):
    """A power cut."""

    name = "kill-node"
    does = "it stops at once, as in a power cut"
    seen_as = frozenset({"stopped"})

    def harm(self) -> Harm:
        """Kill it."""
        return self.ground.breaker.killed(self.node)


class RemoveNode(Scenario):
    """A machine that is gone for good."""

    name = "remove-node"
    does = "it is gone, with what is on its own disk"
    seen_as = frozenset({"missing"})

    def harm(self) -> Harm:
        """Remove it."""
        return self.ground.breaker.removed(self.node)


class FreezeNode(Scenario):
    """A machine that hangs, and goes on later as if nothing had been."""

    name = "freeze-node"
    does = "it stands still, and goes on later with all that it had"
    seen_as = frozenset({"paused"})
    by_itself = True

    def harm(self) -> Harm:
        """Freeze it."""
        return self.ground.breaker.frozen(self.node)


class StopSshd(Scenario):
    """A node that works and lets nobody in."""

    name = "stop-sshd"
    does = "its SSH server ends, and nothing starts it again"
    seen_as = frozenset({"unreachable"})

    def harm(self) -> Harm:
        """Stop the SSH server; connections that there are stay."""
        return self.ground.breaker.scripted(
            self.node, "systemctl stop ssh.service", "systemctl start ssh.service"
        )

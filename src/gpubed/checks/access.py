"""Checks nodes: SSH between all pairs, clocks that agree, their own health."""

from __future__ import annotations

import time
from collections.abc import Iterator

from gpubed.checks.context import Context, judged
from gpubed.checks.registry import Stage, at
from gpubed.configuration import health
from gpubed.nodes import answers
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import SSH
from gpubed.nodes.verification import Check

_MAX_OFFSET_S = 0.5
_NOW = "date +%s.%N"
_SSH = "ssh -F /etc/gpubed/ssh_config -o BatchMode=yes -o ConnectTimeout=5"


@at(Stage.REACH, "ssh.mesh")
def mesh(context: Context) -> Iterator[Check]:
    """Every node logs in to every node by name, without a password."""
    names = [node.name for node in context.allocation.nodes]

    def unreached(node: Node, ssh: SSH) -> list[str]:
        # Each node starts the loop with itself: sshd drops some of more than ten connections that
        # have not logged in yet.
        first = names.index(node.name)
        peers = " ".join(names[first:] + names[:first])
        loop = f"for peer in {peers}; do {_SSH} $peer true </dev/null || echo $peer; done"
        failed = set(ssh.run(loop, check=False).stdout.split())
        return [name for name in names if name in failed]

    for node, missed in context.on_each(unreached):
        reason = f"does not reach {', '.join(missed)}" if missed else ""
        reached, limit = len(names) - len(missed), f"{len(names)} nodes"
        yield judged("ssh.mesh", node.name, reason, reached, limit, "nodes")


@at(Stage.REACH, "clock.offset")
def clocks(context: Context) -> Iterator[Check]:
    """Clocks agree with the controller's; half of the command's duration is the uncertainty."""

    def offset(_: Node, ssh: SSH) -> tuple[float, float]:
        start = time.time()
        output = ssh.run(_NOW)
        end = time.time()
        theirs = answers.of(ssh, _NOW, output).number()
        return theirs - (start + end) / 2, (end - start) / 2

    for node, (seconds, uncertainty) in context.on_each(offset):
        right = abs(seconds) <= _MAX_OFFSET_S + uncertainty
        why = "" if right else "the clock is off; is a time service running?"
        limit = f"±{_MAX_OFFSET_S} s (± {uncertainty:.3f} s by measurement)"
        yield judged("clock.offset", node.name, why, round(seconds, 3), limit, "s")


@at(Stage.REACH)
def health_of_nodes(context: Context) -> Iterator[Check]:
    """Read the health that each node reports of itself."""
    for found in health.look(context.cluster.paths, context.allocation.nodes):
        reason = "" if found.state == "well" else found.reason or found.state
        yield judged("health.node", found.node, reason, found.state, "well")

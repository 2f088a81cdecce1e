"""SSH between all pairs of nodes, and clocks that agree."""

from __future__ import annotations

import time
from collections.abc import Iterator

from gpubed.checks.context import Context
from gpubed.checks.stages import Stage, at
from gpubed.nodes import answers
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import SSH
from gpubed.nodes.verification import Check

_MAX_OFFSET_S = 0.5
_NOW = "date +%s.%N"
_SSH = "ssh -F /etc/gpubed/ssh_config -o BatchMode=yes -o ConnectTimeout=5"


@at(Stage.REACH, "ssh.mesh")
def mesh(context: Context) -> Iterator[Check]:
    """Every node reaches every node by name, without a question."""
    names = [node.name for node in context.allocation.nodes]

    def unreached(node: Node, ssh: SSH) -> list[str]:
        # Each node begins with itself, as sshd drops some of more than ten connections that have
        # not logged in yet.
        first = names.index(node.name)
        peers = " ".join(names[first:] + names[:first])
        loop = f"for peer in {peers}; do {_SSH} $peer true </dev/null || echo $peer; done"
        said = set(ssh.run(loop, check=False).stdout.split())
        return [name for name in names if name in said]

    for node, missed in context.on_each(unreached):
        yield Check(
            id="ssh.mesh",
            node=node.name,
            result="fail" if missed else "pass",
            value=len(names) - len(missed),
            unit="nodes",
            limit=f"{len(names)} nodes",
            reason=f"does not reach {', '.join(missed)}" if missed else "",
        )


@at(Stage.REACH, "clock.offset")
def clocks(context: Context) -> Iterator[Check]:
    """Clocks agree with the controller's, within the time that the question took."""

    def offset(_: Node, ssh: SSH) -> tuple[float, float]:
        asked = time.time()
        told = ssh.run(_NOW)
        answered = time.time()
        theirs = answers.of(ssh, _NOW, told).number()
        return theirs - (asked + answered) / 2, (answered - asked) / 2

    for node, (seconds, uncertainty) in context.on_each(offset):
        right = abs(seconds) <= _MAX_OFFSET_S + uncertainty
        yield Check(
            id="clock.offset",
            node=node.name,
            result="pass" if right else "fail",
            value=round(seconds, 3),
            unit="s",
            limit=f"±{_MAX_OFFSET_S} s (± {uncertainty:.3f} s by measurement)",
            reason="" if right else "the clock is off; is a time service running?",
        )

"""Docker: the daemon answers on every node, and its data lie on a disk that suits it."""

from __future__ import annotations

from collections.abc import Iterator

from gpubed.allocation import Node
from gpubed.checks.context import Context
from gpubed.ssh import SSH, CommandResult
from gpubed.verification import Check

# `version` says plainly that nobody answers; older releases of `info` do not.
_ASK = (
    "sudo -n docker version --format '{{.Server.Version}}'"
    " && sudo -n docker info --format '{{.Driver}}'"
)


def daemon(context: Context) -> Iterator[Check]:
    """Ask the daemon of each node; what cannot be asked fails with the daemon's own words."""
    if context.plan.spec.services.docker is None:
        why = "Docker is off in cluster.yml"
        yield Check(id="docker.daemon", result="skip", reason=why)
        return

    def ask(_: Node, ssh: SSH) -> CommandResult:
        return ssh.run(_ASK, check=False)

    repair = f"gpubed configure {context.cluster.name}"
    for node, answer in context.on_each(ask):
        right = answer.exit_code == 0
        log = f"journalctl -u docker on {node.name}"
        yield Check(
            id="docker.daemon",
            node=node.name,
            result="pass" if right else "fail",
            value=", ".join(answer.stdout.split()) if right else None,
            limit="answers",
            reason="" if right else f"{answer.tail}; see {log}, then {repair}",
        )

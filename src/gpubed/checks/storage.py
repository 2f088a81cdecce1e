"""The shared file system: every node reads what every other wrote."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from gpubed.allocation import Node
from gpubed.checks.context import Context
from gpubed.ssh import SSH
from gpubed.verification import Check


def shared(context: Context) -> Iterator[Check]:
    """Write a token from each node, read all of them on each node."""
    root = context.plan.spec.storage.shared.path
    folder, token = f"{root}/.verify-{secrets.token_hex(4)}", secrets.token_hex(16)
    context.head.run("mkdir %s", folder)
    try:
        context.on_each(lambda node, ssh: ssh.run(f"echo {token} > {folder}/{node.name}"))
        wanted = len(context.allocation.nodes)

        def seen(_: Node, ssh: SSH) -> int:
            return ssh.run(f"cat {folder}/*", check=False).stdout.split().count(token)

        for node, count in context.on_each(seen):
            yield Check(
                id="storage.shared",
                node=node.name,
                result="pass" if count == wanted else "fail",
                value=count,
                unit="nodes' files",
                limit=str(wanted),
                reason="" if count == wanted else f"{root} is not the same on all nodes",
            )
    finally:
        context.head.run("rm -rf %s", folder)

"""Checks file systems: none is full, and all nodes read what each wrote to the shared one."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from gpubed.checks.context import Context
from gpubed.checks.stages import Stage, at
from gpubed.nodes import disks
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import SSH
from gpubed.nodes.verification import Check


@at(Stage.STORAGE, "storage.space")
def space(context: Context) -> Iterator[Check]:
    """No file system of a node is full."""
    shared = context.plan.spec.storage.shared.path
    for node, found in context.on_each(lambda _, ssh: disks.look(ssh, shared)):
        reasons = disks.full(found)
        yield Check(
            id="storage.space",
            node=node.name,
            result="fail" if reasons else "pass",
            value=max((one.used for one in found), default=None),
            unit="%",
            limit="none full",
            reason="; ".join(reasons),
        )


@at(Stage.STORAGE, "storage.shared")
def shared(context: Context) -> Iterator[Check]:
    """Write a token from each node, read all of them on each node."""
    root = context.plan.spec.storage.shared.path
    folder, token = f"{root}/.verify-{secrets.token_hex(4)}", secrets.token_hex(16)
    wanted = len(context.allocation.nodes)

    def written(node: Node, ssh: SSH) -> str:
        write = f"mkdir -p {folder} && echo {token} > {folder}/{node.name}"
        done = ssh.run(write, check=False)
        return f"{root} cannot be written to: {done.tail}" if done.exit_code else ""

    try:
        refused = {node.name: why for node, why in context.on_each(written)}

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
                reason=""
                if count == wanted
                else refused[node.name] or f"{root} is not the same on all nodes",
            )
    finally:
        context.head.run("rm -rf %s", folder, check=False)

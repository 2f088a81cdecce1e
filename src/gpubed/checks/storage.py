"""Checks file systems: none is full, and all nodes read what each wrote to the shared one."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

from gpubed.checks.context import Context, judged
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
        fullest = max((one.used for one in found), default=None)
        yield judged("storage.space", node.name, "; ".join(reasons), fullest, "none full", "%")


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
            why = refused[node.name] or f"{root} is not the same on all nodes"
            why = "" if count == wanted else why
            yield judged("storage.shared", node.name, why, count, str(wanted), "nodes' files")
    finally:
        context.head.run("rm -rf %s", folder, check=False)

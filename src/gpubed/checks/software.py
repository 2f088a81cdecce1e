"""The recipe: every node sees the pinned versions."""

from __future__ import annotations

import json
from collections.abc import Iterator

from gpubed import registry
from gpubed.allocation import Node
from gpubed.checks.context import Context
from gpubed.ssh import SSH
from gpubed.verification import Check

_ASK = (
    "%s/env/current/bin/python -c 'import json; from importlib.metadata import version as v; "
    'print(json.dumps({name: v(name) for name in ("torch", "horovod")}))\''
)


def recipe(context: Context) -> Iterator[Check]:
    """Compare installed versions with the recipe's."""
    if not {"python_env", "horovod"} <= context.roles:
        why = "the cluster has no training environment"
        yield Check(id="recipe.versions", result="skip", reason=why)
        return
    pinned = registry.recipe(context.plan.spec.recipe)
    wanted = {"torch": pinned["torch"], "horovod": pinned["horovod"]["version"]}
    root = context.plan.spec.storage.shared.path

    def ask(_: Node, ssh: SSH) -> dict[str, str]:
        answer = ssh.run(_ASK, root, check=False)
        found: dict[str, str] = json.loads(answer.stdout) if answer.exit_code == 0 else {}
        # The part after '+' names how it was built, which no recipe pins.
        return {name: version.split("+")[0] for name, version in found.items()}

    for node, found in context.on_each(ask):
        yield Check(
            id="recipe.versions",
            node=node.name,
            result="pass" if found == wanted else "fail",
            value=", ".join(f"{name} {version}" for name, version in found.items()),
            limit=", ".join(f"{name} {version}" for name, version in wanted.items()),
            reason="" if found == wanted else "what is installed is not what the recipe pins",
        )

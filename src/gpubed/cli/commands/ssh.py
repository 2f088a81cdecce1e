"""gpubed ssh."""

import os
from typing import Annotated

import typer
from typer.core import TyperCommand

from gpubed.cli import completion
from gpubed.cli.options import Cluster, find
from gpubed.core import secret
from gpubed.nodes.allocation import load as load_allocation

EXAMPLE = "gpubed ssh lab head -- nproc"


class _Words(TyperCommand):
    """What follows `--` is the command, also where no node was named before it."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        if args[1:2] == ["--"]:
            args.insert(1, "head")
        return super().parse_args(ctx, args)


SETTINGS = {"cls": _Words, "context_settings": {"ignore_unknown_options": True}}


def command(
    cluster: Cluster,
    node: Annotated[
        str, typer.Argument(help="A node's name, or `head`.", autocompletion=completion.nodes)
    ] = "head",
    words: Annotated[list[str] | None, typer.Argument(metavar="[-- COMMAND]")] = None,
) -> None:
    """Open a shell on a node, or run a command there; on the head if none is named."""
    paths = find(cluster, from_state=True)
    name = load_allocation(paths.allocation).node(node).name
    secret.require_key(paths)
    os.execvp("ssh", ["ssh", "-F", str(paths.ssh_config), name, *(words or [])])  # noqa: S606

"""gpubed ssh."""

import os
from typing import Annotated

import typer

from gpubed.allocation import load as load_allocation
from gpubed.cli.options import Cluster, find

EXAMPLE = "gpubed ssh lab head -- nproc"
SETTINGS = {"context_settings": {"ignore_unknown_options": True}}


def command(
    cluster: Cluster,
    node: Annotated[str, typer.Argument(help="A node's name, or `head`.")] = "head",
    words: Annotated[list[str] | None, typer.Argument(metavar="[-- COMMAND]")] = None,
) -> None:
    """Open a shell on a node, or run a command there."""
    paths = find(cluster)
    name = load_allocation(paths.allocation).node(node).name
    os.execvp("ssh", ["ssh", "-F", str(paths.ssh_config), name, *(words or [])])  # noqa: S606

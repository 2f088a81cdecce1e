"""Arguments and options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpubed import nearest
from gpubed.cli import completion
from gpubed.cli.ui import UI
from gpubed.errors import UsageError
from gpubed.paths import ClusterPaths, Project

Cluster = Annotated[
    str,
    typer.Argument(
        metavar="CLUSTER", help="A folder of inventories/.", autocompletion=completion.clusters
    ),
]
Backend = Annotated[str, typer.Option(help="The testbed.", autocompletion=completion.backends)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
EngineOption = Annotated[
    str | None,
    typer.Option("--engine", metavar="cli|embedded", help="Pulumi's CLI, or the engine built in."),
]


def find(name: str) -> ClusterPaths:
    """Return the paths of a cluster that has a specification.

    Raises:
        UsageError: There is no such cluster, or what is known of it is out of reach.
    """
    cluster = named(name)
    UI.cluster = cluster.name
    cluster.project.require_states()
    # A path that leads to a file all the same would have a state and labels of its own.
    if "/" in cluster.name or not cluster.spec.is_file():
        known = cluster.project.clusters()
        elsewhere = "cd to the folder that has inventories/, or set GPUBED_ROOT to it"
        hint = nearest.suggestion(name, known) if known else elsewhere
        raise UsageError(
            f"there is no cluster {name!r} in {cluster.project.inventories}",
            f"gpubed init {cluster.name} makes one; {hint}",
        )
    return cluster


def named(name: str) -> ClusterPaths:
    """Return the paths of a cluster by its name, or by the path of its folder or file."""
    project, path = Project.find(), Path(name)
    folder = (path.parent if path.name == "cluster.yml" else path).absolute()
    if folder.parent.resolve() == project.inventories.resolve():
        return project.cluster(folder.name)
    return project.cluster(str(path))  # `lab/`, as a shell completes it, is `lab`

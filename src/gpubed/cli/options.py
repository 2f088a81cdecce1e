"""Arguments and options that several verbs share."""

from __future__ import annotations

from typing import Annotated

import typer

from gpubed import registry
from gpubed.errors import UsageError
from gpubed.paths import ClusterPaths, Project


def _complete(incomplete: str) -> list[str]:
    return [name for name in Project.find().clusters() if name.startswith(incomplete)]


Cluster = Annotated[
    str,
    typer.Argument(metavar="CLUSTER", help="A folder of inventories/.", autocompletion=_complete),
]
Backend = Annotated[
    str,
    typer.Option(
        help="The testbed.",
        autocompletion=lambda incomplete: [
            name for name in registry.backend_names() if name.startswith(incomplete)
        ],
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
EngineOption = Annotated[
    str | None,
    typer.Option("--engine", metavar="cli|embedded", help="Pulumi's CLI, or the engine built in."),
]


def find(name: str) -> ClusterPaths:
    """Return the paths of a cluster that has a specification.

    Raises:
        UsageError: There is no such cluster.
    """
    project = Project.find()
    cluster = project.cluster(name)
    if not cluster.spec.is_file():
        known = ", ".join(project.clusters())
        hint = f"clusters: {known}" if known else f"gpubed init {name}"
        raise UsageError(f"there is no cluster {name!r} in {project.inventories}", hint)
    return cluster

"""Arguments and options that several verbs share."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from gpubed.cli import completion
from gpubed.cli.ui import UI
from gpubed.core import reading, record
from gpubed.core.errors import GpubedError, UsageError
from gpubed.core.paths import ClusterPaths, Project
from gpubed.core.text import nearest_name, ssh_path
from gpubed.core.units import parse_seconds

_LONGEST_NAME = 255  # bytes of a folder's name


def _by_name(word: str) -> str:
    paths = named(word)
    return paths.name if is_name(paths) else word


ClusterName = Annotated[
    str,
    typer.Argument(
        metavar="CLUSTER",
        help="A folder of inventories/.",
        callback=_by_name,
        autocompletion=completion.clusters,
    ),
]
Backend = Annotated[str, typer.Option(help="The testbed.", autocompletion=completion.backends)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
EngineOption = Annotated[
    str | None,
    typer.Option(
        "--engine",
        metavar="cli|embedded",
        help="Pulumi's CLI, or the engine built in.",
        autocompletion=completion.engines,
    ),
]


def find(name: str, *, from_state: bool = False) -> ClusterPaths:
    """Return the paths of a cluster.

    Args:
        name: The cluster's name, or the path of its folder or specification.
        from_state: Whether a cluster whose specification is lost is accepted.

    Raises:
        UsageError: There is no such cluster, or its specification is lost.
    """
    paths = named(name)
    UI.cluster = paths.name
    paths.project.require_states()
    if is_name(paths):
        _update_ssh_config(paths)
        if paths.spec.is_file():
            return paths
        in_project = from_state and paths.name in paths.project.known()
        if in_project or record.was_made(paths):
            if from_state:
                return paths
            raise lost_specification(paths)
    names = paths.project.clusters()
    elsewhere = "cd to the folder that has inventories/, or set GPUBED_ROOT to it"
    hint = nearest_name(name, names) if names else elsewhere
    from gpubed.spec import clusterspec  # slow to import

    # Verbs that work from the state, such as `down`, need no advice to make a cluster.
    if not from_state and not clusterspec.name_fault(paths.name):
        hint = f"gpubed init {paths.name} makes one; {hint}"
    raise UsageError(f"there is no cluster {name!r} in {paths.project.inventories}", hint)


def is_name(paths: ClusterPaths) -> bool:
    """Return whether a cluster's name can be a folder's name, and is no path.

    Another path of the same folder would give the cluster a second state and other labels.
    """
    name, most = paths.name, _LONGEST_NAME
    return "/" not in name and name not in ("", ".", "..") and len(os.fsencode(name)) <= most


def _update_ssh_config(paths: ClusterPaths) -> None:
    """Write ssh_config again if it has other paths, as in a project that was moved."""
    with suppress(GpubedError, OSError):
        if ssh_path(paths.known_hosts) not in reading.file(paths.ssh_config).text():
            from gpubed.configuration import inventory  # slow to import

            inventory.render_ssh(paths)


def lost_specification(paths: ClusterPaths) -> UsageError:
    """Return the error about a cluster that exists but has lost its specification."""
    back = record.put_back(paths) or f"write {paths.spec} anew, or put a backup there"
    return UsageError(
        f"cluster {paths.name} was made, and its specification {paths.spec} is gone",
        f"{back}; or, to remove the cluster: gpubed down {paths.name}",
    )


def named(name: str) -> ClusterPaths:
    """Return the paths of a cluster by its name, or by the path of its folder or file."""
    project, path = Project.find(), Path(name)
    folder = (path.parent if path.name == "cluster.yml" else path).absolute()
    if folder.parent.resolve() == project.inventories.resolve():
        return project.cluster(folder.name)
    return project.cluster(str(path))  # `lab/`, as shells complete it, is `lab`


def seconds(option: str, text: str, example: str) -> float:
    """Return the seconds of a duration that an option names, such as `10 min`."""
    try:
        return parse_seconds(text, example)
    except ValueError as error:
        raise UsageError(f"{option} {text!r} {error}", f"{option} {example!r}") from None

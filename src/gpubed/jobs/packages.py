"""Adds a project's own packages to the Python environment of its run, on the head."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable

from pydantic import BaseModel

from gpubed.core import progress, reading
from gpubed.core.errors import GpubedError
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.openssh import Login
from gpubed.nodes.ssh import SSH
from gpubed.testbeds import registry

LOCK = "packages.txt"
"""File in the run's folder `origin` with its exact packages and their hashes."""
_PROGRAM = "/opt/gpubed/uv/bin/python /opt/gpubed/make_layer.py"  # role python_env
_TIMEOUT_S = 3600.0
Place = tuple[SSH | Login, str, str]
"""A session with a host, its command for `make_layer.py`, and its folder of environments."""


class _Answer(BaseModel):
    """The path of the layer and its lock; on failure, the reason and a hint."""

    path: str = ""
    lock: str = ""
    why: str = ""
    hint: str = ""


def wants(names: Collection[str], packages: Collection[str]) -> bool:
    """Return whether a run needs packages, by the names of its files and the listed packages."""
    listed = "requirements.txt" in names or {"pyproject.toml", "uv.lock"} <= set(names)
    return bool(packages) or listed


def on_head(cluster: Cluster, head: SSH) -> Place:
    """Return the place of packages for runs on a cluster's nodes."""
    return head, _PROGRAM, f"{cluster.plan.spec.storage.shared.path}/env"


def provide(
    cluster: Cluster, place: Place, folder: str, packages: Iterable[str], lock: str
) -> tuple[str, str]:
    """Return the environment that a run starts in, and the lock of its added packages.

    Args:
        folder: The run's folder on shared storage.
        packages: Requirements in addition to those of the folder.
        lock: Lock of the run that this run repeats; used if both have the same requirements.

    Raises:
        GpubedError: The packages conflict with the cluster's, or cannot be installed.
    """
    progress.emit("note", message="looking for the project's packages; new ones are installed once")
    session, program, root = place
    environment = registry.backend(cluster.plan.backend).environment()
    request = {"folder": folder, "lock": lock, "environment": environment, "packages": [*packages]}
    answer = session.run(
        *(f"{program} run %s %s", f"{root}/current", f"{root}/layers"),
        stdin=json.dumps(request),
        timeout=_TIMEOUT_S,
        check=False,
    )
    if answer.exit_code:
        why = f"the head cannot add the project's packages: {answer.tail}"
        raise GpubedError(why, f"gpubed up {cluster.name}")
    layer = reading.reply(answer.stdout, "the layer of packages").json(_Answer)
    if layer.why:
        raise GpubedError(f"the project's packages: {layer.why}", layer.hint)
    return layer.path, layer.lock

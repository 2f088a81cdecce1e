"""Has the head add a project's own packages to the environment that its run starts in."""

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
"""The exact packages of a run, with their hashes; in its folder `origin`."""
_PROGRAM = "/opt/gpubed/uv/bin/python /opt/gpubed/make_layer.py"  # role python_env
_TIMEOUT_S = 3600.0
Place = tuple[SSH | Login, str, str]
"""A session with a host, how it calls `make_layer.py`, and the folder of environments."""


class _Told(BaseModel):
    """The layer and its lock, or why there is none and what to do."""

    path: str = ""
    lock: str = ""
    why: str = ""
    hint: str = ""


def wants(names: Collection[str], packages: Collection[str]) -> bool:
    """Say whether a run of these files wants packages of its own."""
    listed = "requirements.txt" in names or {"pyproject.toml", "uv.lock"} <= set(names)
    return bool(packages) or listed


def on_head(cluster: Cluster, head: SSH) -> Place:
    """Return where a cluster's own runs get packages."""
    return head, _PROGRAM, f"{cluster.plan.spec.storage.shared.path}/env"


def provide(
    cluster: Cluster, place: Place, folder: str, packages: Iterable[str], lock: str
) -> tuple[str, str]:
    """Return the environment that a run starts in, and the lock of what was added to it.

    Args:
        folder: The run's folder on shared storage.
        packages: Requirements beside those of the folder.
        lock: That of the run that this one repeats; it counts if both want the same.

    Raises:
        GpubedError: The packages do not go with the cluster's, or cannot be had.
    """
    progress.emit(
        "note",
        message="looking for the project's packages; those that are missing are installed once",
    )
    session, program, root = place
    environment = registry.backend(cluster.plan.backend).environment()
    asked = {"folder": folder, "lock": lock, "environment": environment, "packages": [*packages]}
    answer = session.run(
        *(f"{program} run %s %s", f"{root}/current", f"{root}/layers"),
        stdin=json.dumps(asked),
        timeout=_TIMEOUT_S,
        check=False,
    )
    if answer.exit_code:
        why = f"the head cannot add the project's packages: {answer.tail}"
        raise GpubedError(why, f"gpubed up {cluster.name}")
    told = reading.reply(answer.stdout, "the layer of packages").json(_Told)
    if told.why:
        raise GpubedError(f"the project's packages: {told.why}", told.hint)
    return told.path, told.lock

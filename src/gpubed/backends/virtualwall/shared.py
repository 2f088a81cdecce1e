"""The folder that the testbed mounts on all nodes: a cluster's part of it outlives its nodes.

Nodes come and go with every change of the request, and what a researcher wrote stays. Only
`gpubed down` removes it, through the head, while there is one.
"""

from __future__ import annotations

from gpubed import progress
from gpubed import spec as specs
from gpubed.allocation import Node
from gpubed.backends.virtualwall import acquaintance, journal
from gpubed.backends.virtualwall.config import Config
from gpubed.errors import GpubedError
from gpubed.paths import Project
from gpubed.plan import plan
from gpubed.spec import ClusterSpec
from gpubed.ssh import SSH

_REMOVE_S = 600.0


def folder(spec: ClusterSpec) -> str | None:
    """Return the testbed's folder, if the cluster keeps its data there."""
    config = spec.backend
    assert isinstance(config, Config)  # noqa: S101
    is_wanted = spec.storage.shared.provider == "volume" and config.shared_folder is not None
    return (config.shared_folder or "").rstrip("/") if is_wanted else None


def part(folder_: str, uuid: str) -> str:
    """Return a cluster's part of a folder."""
    return f"{folder_}/gpubed-{uuid}"


def remove(cluster: str) -> None:
    """Remove a cluster's part; where its head does not answer any more, say what stays."""
    paths = Project.find().cluster(cluster)
    wanted, _ = specs.check(paths.spec)
    known = journal.load(paths)
    if wanted is None or known is None or not isinstance(wanted.backend, Config):
        return
    shared, head = folder(wanted), plan(wanted).nodes[0].name
    met = acquaintance.load(paths, head)
    if shared is None or met is None:
        return
    doomed = part(shared, known.uuid)
    door = Node.model_validate({"name": head, "group": "", "role": "head", **met})
    try:
        with SSH(door, paths) as ssh:
            ssh.run("sudo -n umount -l %s", wanted.storage.shared.path, check=False)
            ssh.run("sudo -n rm -rf --one-file-system %s", doomed, timeout=_REMOVE_S)
    except GpubedError as error:
        progress.emit("note", message=f"{doomed} stays on the testbed: {error.message}")

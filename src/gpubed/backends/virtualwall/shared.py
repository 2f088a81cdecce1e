"""A cluster's part of the folder that the testbed mounts on all nodes; it outlives the nodes.

`gpubed down` removes it, through a node while there is one. Its path is noted when nodes get it,
since the specification may have changed by the time of `down`.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from gpubed.backends.virtualwall import journal
from gpubed.backends.virtualwall.config import DATA_RECORD, Config
from gpubed.core import files, progress, reading
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import SSH
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.testbeds.base import Existing

_REMOVE_S = 600.0


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    uuid: str
    folder: str
    path: str


def part(spec: ClusterSpec, uuid: str) -> str | None:
    """Return a cluster's part of the testbed's folder, if it keeps its data there."""
    config = spec.backend
    if spec.storage.shared.provider != "volume" or not isinstance(config, Config):
        return None
    folder = config.shared_folder
    return f"{folder.rstrip('/')}/gpubed-{uuid}" if folder else None


def note(paths: ClusterPaths, uuid: str, folder: str, path: str) -> None:
    """Write down that nodes have a part of the folder."""
    had = _Part(uuid=uuid, folder=folder, path=path)
    files.write(paths.state / DATA_RECORD, had.model_dump_json().encode())


def existing(paths: ClusterPaths, wanted: ClusterSpec | None) -> list[Existing]:
    """Return the cluster's part, if it has one; `wanted` is its specification, if usable."""
    if had := _noted(paths, wanted):
        return [Existing("shared folder", had.folder, had.folder, had.uuid, data=True)]
    return []


def remove(paths: ClusterPaths, wanted: ClusterSpec | None) -> list[Existing]:
    """Remove a cluster's part; if no node answers, report and return what stays."""
    had = _noted(paths, wanted)
    if had is None:
        return []
    why = "there is no node through which it could be reached"
    for name, met in journal.nodes(paths):
        door = Node.model_validate({"name": name, "group": "", "role": "head", **met})
        try:
            with SSH(door, paths) as ssh:
                ssh.run("sudo -n umount -l %s", had.path, check=False)
                ssh.run("sudo -n rm -rf --one-file-system %s", had.folder, timeout=_REMOVE_S)
        except GpubedError as error:
            why = error.message
        else:
            (paths.state / DATA_RECORD).unlink(missing_ok=True)
            return []
    again = f"gpubed up {paths.name}, then gpubed down {paths.name}, removes it"
    progress.emit("note", message=f"{had.folder} stays on the testbed: {why}; {again}")
    return existing(paths, wanted)


def _noted(paths: ClusterPaths, wanted: ClusterSpec | None) -> _Part | None:
    try:
        return reading.file(paths.state / DATA_RECORD).json(_Part)
    except reading.Unreadable:  # a former version noted none
        known = journal.load(paths)
        had = part(wanted, known.uuid) if wanted and known else None
        if wanted is None or known is None or had is None:
            return None
        note(paths, known.uuid, had, wanted.storage.shared.path)  # the journal may go first
        return _Part(uuid=known.uuid, folder=had, path=wanted.storage.shared.path)

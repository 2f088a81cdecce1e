"""Files that record a cluster's resources at a GENI testbed; none holds a secret.

`.gpubed/<cluster>/slice.json` names the slice before it is made, and its slivers as soon as they
are known, so that the next run finds those of a killed one. `nodes/<name>.json` is the result of a
node's resource, so that a node proves its host keys only once. `shared_folder.json` names the
cluster's part of the folder that the testbed mounts on nodes, for `gpubed down`.
"""

from __future__ import annotations

import json
import shlex
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field

from gpubed.backends.virtualwall.config import DATA_RECORD, Config
from gpubed.core import files, progress, reading
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Hop, Node, Port
from gpubed.nodes.ssh import SSH
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.testbeds.base import Existing

FILE = "slice.json"
_GIVEN_BACK = "given_back"  # its modification time is that of the release
_RELOADING_S = 900.0
_REMOVE_S = 600.0
_SHARE = 3  # a third of the patience; the rest is for booting nodes


class Journal(BaseModel):
    """The record of one cluster's slice."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: Literal[1] = 1
    uuid: str  # the cluster
    slice_urn: str
    # Older versions kept it in `testbed`.
    project: str = Field(
        default="", validation_alias=AliasChoices("project", AliasPath("testbed", "project"))
    )
    request: str = ""  # hash of the request that the slivers were made with
    slivers: tuple[Any, ...] = ()  # URNs
    left_out: dict[str, str] = {}  # nodes that are not requested, with the testbed's reasons


class _Known(BaseModel):
    id: str
    control_address: str
    experiment_address: str | None
    port: Port
    user: str
    host_keys: tuple[str, ...]
    via: tuple[Hop, ...]


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    uuid: str
    folder: str
    path: str


def load(paths: ClusterPaths) -> Journal | None:
    """Return the journal of a cluster; None if there is none, Unreadable if it is damaged."""
    path = paths.state / FILE
    aside = shlex.join(["mv", str(path), f"{path}.damaged"])
    fix = (
        f"put a backup there; or: {aside}   (gpubed then finds the slice by the cluster's state, "
        "or by its description at the authority)"
    )
    try:
        return reading.file(path, fix).json(Journal)
    except reading.Missing:
        return None


def save(paths: ClusterPaths, journal: Journal) -> None:
    """Write the journal atomically."""
    paths.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.write(paths.state / FILE, journal.model_dump_json(indent=2).encode(), 0o600)


def forget(paths: ClusterPaths) -> None:
    """Remove the journal."""
    (paths.state / FILE).unlink(missing_ok=True)


def save_node(paths: ClusterPaths, name: str, result: dict[str, Any]) -> None:
    """Keep the result of a node's resource."""
    path = _node(paths, name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.write(path, json.dumps(result, indent=2).encode())


def load_node(paths: ClusterPaths, name: str) -> dict[str, Any] | None:
    """Return the record of a node; None if it is missing or damaged."""
    try:
        return reading.file(_node(paths, name)).json(_Known).model_dump(mode="json")
    except reading.Unreadable:
        return None


def nodes(paths: ClusterPaths) -> list[tuple[str, dict[str, Any]]]:
    """Return the records of all nodes, by name."""
    names = sorted(path.stem for path in _node(paths, "").parent.glob("*.json"))
    return [(name, known) for name in names if (known := load_node(paths, name))]


def forget_node(paths: ClusterPaths, name: str) -> None:
    """Forget a node."""
    _node(paths, name).unlink(missing_ok=True)


def _node(paths: ClusterPaths, name: str) -> Path:
    return paths.state / "nodes" / f"{name}.json"


def gave_back(paths: ClusterPaths) -> None:
    """Record that a cluster's machines are released now: see `are_reloading`."""
    (paths.state / _GIVEN_BACK).touch()


def are_reloading(paths: ClusterPaths, patience_s: float) -> bool:
    """Return whether machines that a cluster released may still become free.

    Emulab takes some minutes to reload them. A file has the time of the release, since another
    driver, or another run, makes the new slice.
    """
    try:
        ago = time.time() - (paths.state / _GIVEN_BACK).stat().st_mtime
    except FileNotFoundError:
        return False
    return 0 <= ago < min(_RELOADING_S, patience_s / _SHARE)


def part(spec: ClusterSpec, uuid: str) -> str | None:
    """Return a cluster's part of the testbed's shared folder; None if it uses none."""
    config = spec.backend
    if spec.storage.shared.provider != "volume" or not isinstance(config, Config):
        return None
    folder = config.shared_folder
    return f"{folder.rstrip('/')}/gpubed-{uuid}" if folder else None


def note_part(paths: ClusterPaths, uuid: str, folder: str, path: str) -> None:
    """Record a cluster's part of the shared folder, and the path of its mount on nodes."""
    made = _Part(uuid=uuid, folder=folder, path=path)
    files.write(paths.state / DATA_RECORD, made.model_dump_json().encode())


def _recorded_part(paths: ClusterPaths) -> _Part | None:
    with suppress(reading.Missing):
        return reading.file(paths.state / DATA_RECORD).json(_Part)
    return None


def shared(paths: ClusterPaths) -> list[Existing]:
    """Return the cluster's part of the shared folder, if it has one."""
    made = _recorded_part(paths)
    return (
        [Existing("shared folder", made.folder, made.folder, made.uuid, data=True)] if made else []
    )


def remove_shared(paths: ClusterPaths) -> list[Existing]:
    """Remove a cluster's part through a node; return it, and report why, if none can."""
    if (made := _recorded_part(paths)) is None:
        return []
    why = "no node is known that could remove it"
    for name, result in nodes(paths):
        node = Node.model_validate({"name": name, "group": "", "role": "head", **result})
        try:
            with SSH(node, paths) as ssh:
                ssh.run("sudo -n umount -l %s", made.path, check=False)
                ssh.run("sudo -n rm -rf --one-file-system %s", made.folder, timeout=_REMOVE_S)
        except GpubedError as error:
            why = error.message
        else:
            (paths.state / DATA_RECORD).unlink(missing_ok=True)
            return []
    again = f"gpubed up {paths.name}, then gpubed down {paths.name}, removes it"
    progress.emit("note", message=f"{made.folder} stays on the testbed: {why}; {again}")
    return shared(paths)

"""The record of what a cluster has at a testbed, written before and after each call.

`.gpubed/<cluster>/slice.json` names the slice before it exists and the slivers as soon as their
names are known, so that a killed run loses nothing. `nodes/<name>.json` has the result of a node's
resource, so that each node proves itself once. `shared_folder.json` names the cluster's part of the
folder that the testbed mounts on all nodes: it outlives them, and `gpubed down` removes it through
a node, when the specification may have changed. None holds a secret. Unknown keys are ignored.
"""

from __future__ import annotations

import json
import shlex
import time
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
_GIVEN_BACK = "given_back"  # since when, its date says
_RELOADING_S = 900.0
_REMOVE_S = 600.0
_SHARE = 3  # of all patience: nodes have to boot, too


class Journal(BaseModel):
    """The record of one cluster's slice."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: Literal[1] = 1
    uuid: str  # the cluster
    slice_urn: str
    # Former versions kept it among the options of the testbed.
    project: str = Field(
        default="", validation_alias=AliasChoices("project", AliasPath("testbed", "project"))
    )
    request: str = ""  # hash of the request that the slivers were made with
    slivers: tuple[Any, ...] = ()  # the URNs of all that the aggregate has named
    left_out: dict[str, str] = {}  # the testbed's reasons for nodes that it could not give, by name


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
        f"put a backup there; or: {aside}   (the slice is known again by the cluster's state, or "
        "by its description at the authority)"
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
    """Return the record of a node; None if there is none, or it cannot be read."""
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
    """Remember that a cluster's machines were given back now: see `are_reloading`."""
    (paths.state / _GIVEN_BACK).touch()


def are_reloading(paths: ClusterPaths, patience_s: float) -> bool:
    """Return whether machines that a cluster gave back may still become free.

    Emulab reloads them first, for some minutes. A file keeps the time, as different drivers remove
    the old slice and make the new one, and another run may go on with a killed one.
    """
    try:
        ago = time.time() - (paths.state / _GIVEN_BACK).stat().st_mtime
    except FileNotFoundError:
        return False
    return 0 <= ago < min(_RELOADING_S, patience_s / _SHARE)


def part(spec: ClusterSpec, uuid: str) -> str | None:
    """Return a cluster's part of the testbed's folder, if it keeps its data there."""
    config = spec.backend
    if spec.storage.shared.provider != "volume" or not isinstance(config, Config):
        return None
    folder = config.shared_folder
    return f"{folder.rstrip('/')}/gpubed-{uuid}" if folder else None


def note_part(paths: ClusterPaths, uuid: str, folder: str, path: str) -> None:
    """Write down that nodes have a part of the folder."""
    had = _Part(uuid=uuid, folder=folder, path=path)
    files.write(paths.state / DATA_RECORD, had.model_dump_json().encode())


def shared(paths: ClusterPaths, wanted: ClusterSpec | None) -> list[Existing]:
    """Return the cluster's part, if it has one; `wanted` is its specification, if usable."""
    if had := _noted(paths, wanted):
        return [Existing("shared folder", had.folder, had.folder, had.uuid, data=True)]
    return []


def remove_shared(paths: ClusterPaths, wanted: ClusterSpec | None) -> list[Existing]:
    """Remove a cluster's part; if no node answers, report and return what stays."""
    had = _noted(paths, wanted)
    if had is None:
        return []
    why = "there is no node through which it could be reached"
    for name, met in nodes(paths):
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
    return shared(paths, wanted)


def _noted(paths: ClusterPaths, wanted: ClusterSpec | None) -> _Part | None:
    try:
        return reading.file(paths.state / DATA_RECORD).json(_Part)
    except reading.Unreadable:  # a former version noted none
        known = load(paths)
        had = part(wanted, known.uuid) if wanted and known else None
        if wanted is None or known is None or had is None:
            return None
        note_part(paths, known.uuid, had, wanted.storage.shared.path)  # the journal may go first
        return _Part(uuid=known.uuid, folder=had, path=wanted.storage.shared.path)

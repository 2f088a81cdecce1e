"""The record of what a cluster has at a testbed, written before and after each call.

`.gpubed/<cluster>/slice.json` names the slice before it exists and the slivers as soon as their
names are known, so that a killed run loses nothing. `nodes/<name>.json` has the result of a node's
resource, so that each node proves itself once. Neither holds a secret. Unknown keys are ignored.
"""

from __future__ import annotations

import json
import shlex
import time
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field

from gpubed.core import files, reading
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Hop, Port

FILE = "slice.json"
_GIVEN_BACK = "given_back"  # since when, its date says
_RELOADING_S = 900.0
_PART = 3  # of all patience: nodes have to boot, too


class Journal(BaseModel):
    """The record of one cluster's slice.

    Attributes:
        uuid: The cluster.
        request: Hash of the request that the slivers were made with.
        slivers: The URNs of all that the aggregate has named.
        left_out: The testbed's reasons for nodes that it could not give, by name.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: Literal[1] = 1
    uuid: str
    slice_urn: str
    # Former versions kept it among the options of the testbed.
    project: str = Field(
        default="", validation_alias=AliasChoices("project", AliasPath("testbed", "project"))
    )
    request: str = ""
    slivers: tuple[Any, ...] = ()
    left_out: dict[str, str] = {}


class _Known(BaseModel):
    id: str
    control_address: str
    experiment_address: str | None
    port: Port
    user: str
    host_keys: tuple[str, ...]
    via: tuple[Hop, ...]


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
    return 0 <= ago < min(_RELOADING_S, patience_s / _PART)

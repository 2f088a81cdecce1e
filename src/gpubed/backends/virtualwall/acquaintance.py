"""Nodes that have proved themselves: kept per node, so that each is proved once.

`.gpubed/<cluster>/nodes/<name>.json` is the result of the node's resource.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from gpubed.core import files, reading
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Hop, Port


class _Known(BaseModel):
    """The result of a node's resource; `allocation.Node` says what is what."""

    id: str
    control_address: str
    experiment_address: str | None
    port: Port
    user: str
    host_keys: tuple[str, ...]
    via: tuple[Hop, ...]


def save(paths: ClusterPaths, name: str, result: dict[str, Any]) -> None:
    """Keep what is known of a node."""
    path = _path(paths, name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.write(path, json.dumps(result, indent=2).encode())


def load(paths: ClusterPaths, name: str) -> dict[str, Any] | None:
    """Return what is known of a node; None when that is nothing that can be read."""
    try:
        return reading.file(_path(paths, name)).json(_Known).model_dump(mode="json")
    except reading.Unreadable:
        return None


def everyone(paths: ClusterPaths) -> list[tuple[str, dict[str, Any]]]:
    """Return all nodes that are known, by name, with what is known of them."""
    names = sorted(path.stem for path in _path(paths, "").parent.glob("*.json"))
    return [(name, known) for name in names if (known := load(paths, name))]


def forget(paths: ClusterPaths, name: str) -> None:
    """Forget a node."""
    _path(paths, name).unlink(missing_ok=True)


def _path(paths: ClusterPaths, name: str) -> Path:
    return paths.state / "nodes" / f"{name}.json"

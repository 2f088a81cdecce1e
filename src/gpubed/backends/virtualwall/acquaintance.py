"""Nodes that have proved themselves: kept per node, so that each is proved once.

`.gpubed/<cluster>/nodes/<name>.json` is the result of the node's resource.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpubed import files
from gpubed.paths import ClusterPaths


def save(cluster: ClusterPaths, name: str, result: dict[str, Any]) -> None:
    """Keep what is known of a node."""
    path = _path(cluster, name)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.write(path, json.dumps(result, indent=2).encode())


def load(cluster: ClusterPaths, name: str) -> dict[str, Any] | None:
    """Return what is known of a node; None when that is nothing."""
    try:
        known: dict[str, Any] = json.loads(_path(cluster, name).read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return known


def forget(cluster: ClusterPaths, name: str) -> None:
    """Forget a node."""
    _path(cluster, name).unlink(missing_ok=True)


def _path(cluster: ClusterPaths, name: str) -> Path:
    return cluster.state / "nodes" / f"{name}.json"

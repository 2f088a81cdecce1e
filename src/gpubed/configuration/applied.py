"""Records which version of each role was applied to each node.

The last task of each role writes the role's fingerprint to the node's file, also when the playbook
is run by hand. A replaced node has a new id, and so no file.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping

from gpubed.core import files, reading
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Allocation, Node

# Marks of roles that a run did not finish; the playbook's `gpubed_applied` writes them instead of
# a fingerprint. The next run calls the handlers of such a role even if nothing changes.
_BEGUN, _AGAIN = "begun", "begun-again"


def missing(
    paths: ClusterPaths, allocation: Allocation, fingerprints: Mapping[str, Mapping[str, str]]
) -> dict[str, list[str]]:
    """Return by role the nodes that lack the version in `fingerprints` (by node and role)."""
    stale: dict[str, list[str]] = {}
    for node in allocation.nodes:
        applied = _read(paths, node.id)
        for role, fingerprint in fingerprints[node.name].items():
            if applied.get(role) != fingerprint:
                stale.setdefault(role, []).append(node.name)
    return stale


def digest(paths: ClusterPaths, allocation: Allocation) -> str:
    """Return a digest of the roles and versions applied to all nodes."""
    records = {node.id: _read(paths, node.id) for node in allocation.nodes}
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()


def prune(paths: ClusterPaths, allocation: Allocation) -> None:
    """Delete the files of nodes that are not in the allocation."""
    names = {f"{node.id}.json" for node in allocation.nodes}
    for path in paths.applied.glob("*.json"):
        if path.name not in names:
            path.unlink()


def forget(
    paths: ClusterPaths,
    allocation: Allocation,
    nodes: Collection[str],
    roles: Mapping[str, Collection[str]],
) -> None:
    """Make the next run apply all roles on `nodes`, and each of `roles` on its nodes.

    The services of `roles` are restarted then. Marks of unfinished roles stay: their services may
    still run with the former files.
    """
    for node in allocation.nodes:
        applied = _read(paths, node.id)
        kept = {
            role: _AGAIN if node.name in roles.get(role, ()) else version
            for role, version in applied.items()
        }
        if node.name in nodes:
            kept = {role: version for role, version in kept.items() if version.startswith(_BEGUN)}
        _write(paths, node, applied, kept)


def outdate(
    paths: ClusterPaths, allocation: Allocation, due: Mapping[str, Collection[str]]
) -> None:
    """Delete the versions of `due` roles before these are applied.

    So a role that fails half-way is due again, even if the specification is changed back.
    """
    nodes = {role: frozenset(names) for role, names in due.items()}
    for node in allocation.nodes:
        applied = _read(paths, node.id)
        kept = {
            role: version
            for role, version in applied.items()
            if version.startswith(_BEGUN) or node.name not in nodes.get(role, ())
        }
        _write(paths, node, applied, kept)


def _write(paths: ClusterPaths, node: Node, old: dict[str, str], new: dict[str, str]) -> None:
    if new != old:
        files.write(paths.applied / f"{node.id}.json", json.dumps(new).encode())


def _read(paths: ClusterPaths, node_id: str) -> dict[str, str]:
    try:
        return reading.file(paths.applied / f"{node_id}.json").json(dict[str, str])
    except reading.Unreadable:  # all roles are applied again
        return {}

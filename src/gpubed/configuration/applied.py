"""Records which version of each role was applied to each node; playbooks update it.

Each role's last task writes its fingerprint for the node. So a role applied by hand counts, and a
replaced node (new id) counts as fresh.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping

from gpubed.core import files, reading
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Allocation, Node

# The playbook's `gpubed_applied` writes these for a role that a run did not finish; the next run
# calls its handlers whether or not anything changes.
_BEGUN, _AGAIN = "begun", "begun-again"


def missing(
    paths: ClusterPaths, allocation: Allocation, fingerprints: Mapping[str, Mapping[str, str]]
) -> dict[str, list[str]]:
    """Return the nodes without a role in the version of `fingerprints` (by node and role)."""
    stale: dict[str, list[str]] = {}
    for node in allocation.nodes:
        done = _record(paths, node.id)
        for role, wanted in fingerprints[node.name].items():
            if done.get(role) != wanted:
                stale.setdefault(role, []).append(node.name)
    return stale


def digest(paths: ClusterPaths, allocation: Allocation) -> str:
    """Return a digest of all that is applied to the nodes."""
    records = {node.id: _record(paths, node.id) for node in allocation.nodes}
    return hashlib.sha256(json.dumps(records, sort_keys=True).encode()).hexdigest()


def prune(paths: ClusterPaths, allocation: Allocation) -> None:
    """Forget nodes that are gone."""
    known = {f"{node.id}.json" for node in allocation.nodes}
    for path in paths.applied.glob("*.json"):
        if path.name not in known:
            path.unlink()


def forget(
    paths: ClusterPaths,
    allocation: Allocation,
    nodes: Collection[str],
    roles: Mapping[str, Collection[str]],
) -> None:
    """Forget what `nodes` have, so that every role is applied again there.

    So is each of `roles` on its nodes, with a restart of its services. What a run did not finish
    stays known: services may run with the former files.
    """
    for node in allocation.nodes:
        done = _record(paths, node.id)
        kept = {
            role: _AGAIN if node.name in roles.get(role, ()) else had for role, had in done.items()
        }
        if node.name in nodes:
            kept = {role: had for role, had in kept.items() if had.startswith(_BEGUN)}
        _keep(paths, node, done, kept)


def outdate(
    paths: ClusterPaths, allocation: Allocation, due: Mapping[str, Collection[str]]
) -> None:
    """Forget which version of the `due` roles nodes had, before these are applied there.

    A role that fails half-way leaves neither version: it is due again even if the specification is
    changed back.
    """
    nodes = {role: frozenset(names) for role, names in due.items()}
    for node in allocation.nodes:
        done = _record(paths, node.id)
        kept = {
            role: had
            for role, had in done.items()
            if had.startswith(_BEGUN) or node.name not in nodes.get(role, ())
        }
        _keep(paths, node, done, kept)


def _keep(paths: ClusterPaths, node: Node, done: dict[str, str], kept: dict[str, str]) -> None:
    if kept != done:
        files.write(paths.applied / f"{node.id}.json", json.dumps(kept).encode())


def _record(paths: ClusterPaths, node_id: str) -> dict[str, str]:
    try:
        return reading.file(paths.applied / f"{node_id}.json").json(dict[str, str])
    except reading.Unreadable:  # then everything is applied again
        return {}

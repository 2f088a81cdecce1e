"""Tells nodes the end of their lease, which they act on without a controller.

Each node looks and acts itself (`gpubed-lease` of role health); telling it takes a second and no
playbook.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial

from gpubed.configuration import roles
from gpubed.core import parallel
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Cluster, Node
from gpubed.nodes.ssh import SSH, CommandFailed
from gpubed.spec.plan import ClusterPlan

# Prefix of the reason when a node quarantines itself at the end of its lease.
_REASON = "its lease ends at "
_PROGRAM = "sudo -n gpubed-lease"


def is_reason(reason: str) -> bool:
    """Return whether the reason of a quarantine is the end of the lease."""
    return reason.startswith(_REASON)


def are_to_mind(plan: ClusterPlan) -> bool:
    """Return whether nodes act on the end of their lease themselves."""
    wanted = plan.spec.lease.on_nodes is not None and plan.spec.configure
    return wanted and "health" in roles.active(plan)


def tell(
    cluster: Cluster, until: datetime | None, left_s: float, known: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Tell all nodes at once that their lease ends, except those that know it already.

    `left_s` is the time until then by this machine's clock. `known`, and the first result, are the
    words that each node was told last, by its id; the second is why others were not told, by name.
    """
    policy = cluster.plan.spec.lease.on_nodes if are_to_mind(cluster.plan) else None
    said: dict[str, object] = {}
    if policy and until:
        # Formatted to the second, as the node compares it.
        end = until.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S+00:00")
        said = {"cluster": cluster.allocation.uuid, "name": cluster.name, "until": end}
        said |= {"warning": policy.warning, "stop": policy.stop}
        # An own host may have other users.
        said |= {"everyone": cluster.plan.spec.backend.releases}
    words = json.dumps(said) if said else ""
    stale = [node for node in cluster.allocation.nodes if known.get(node.id, "") != words]
    what = ("tell", json.dumps({**said, "left_s": left_s})) if said else ("forget",)
    faults = parallel.each(partial(_tell, cluster.paths, what), stale)
    failed = {node.name: why for node, why in zip(stale, faults, strict=True) if why}
    now = {
        node.id: known.get(node.id, "") if node.name in failed else words
        for node in cluster.allocation.nodes
    }
    return {id_: one for id_, one in now.items() if one}, failed


def _tell(paths: ClusterPaths, what: tuple[str, ...], node: Node) -> str:
    try:
        with SSH(node, paths) as session:
            session.run(f"{_PROGRAM}{' %s' * len(what)}", *what)
    except CommandFailed as error:
        if error.result.exit_code != 127:
            return error.message
        return f"it has no gpubed-lease; repair: gpubed configure {paths.name} --tags health"
    except GpubedError as error:
        return error.message
    return ""

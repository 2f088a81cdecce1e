"""Writes the end of the lease to nodes, which act on it without a controller.

`gpubed-lease` of role health keeps and checks the time; writing it takes a second and no playbook.
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


def is_on(plan: ClusterPlan) -> bool:
    """Return whether the nodes of a plan act on the end of their lease themselves."""
    is_declared = plan.spec.lease.on_nodes is not None and plan.spec.configure
    return is_declared and "health" in roles.active(plan)


def tell(
    cluster: Cluster, until: datetime | None, left_s: float, written: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Write the end of the lease to all nodes that do not have it yet.

    Args:
        until: The end of the lease; None removes it from nodes.
        left_s: Seconds until then by the controller's clock.
        written: The JSON text that was written to each node last, by node id.

    Returns:
        The texts that nodes have now, by node id; the errors of nodes that failed, by name.
    """
    policy = cluster.plan.spec.lease.on_nodes if is_on(cluster.plan) else None
    lease: dict[str, object] = {}
    if policy and until:
        # Formatted to the second, as the node compares texts.
        end = until.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S+00:00")
        lease = {"cluster": cluster.allocation.uuid, "name": cluster.name, "until": end}
        lease |= {"warning": policy.warning, "stop": policy.stop}
        # Own hosts, which are not released, may have other users.
        lease |= {"everyone": cluster.plan.spec.backend.releases}
    text = json.dumps(lease) if lease else ""
    nodes = cluster.allocation.nodes
    stale = [node for node in nodes if written.get(node.id, "") != text]
    words = ("tell", json.dumps({**lease, "left_s": left_s})) if lease else ("forget",)
    faults = parallel.each(partial(_tell, cluster.paths, words), stale)
    failed = {node.name: why for node, why in zip(stale, faults, strict=True) if why}
    now = {node.id: written.get(node.id, "") if node.name in failed else text for node in nodes}
    return {id_: text for id_, text in now.items() if text}, failed


def _tell(paths: ClusterPaths, words: tuple[str, ...], node: Node) -> str:
    try:
        with SSH(node, paths) as session:
            session.run(f"{_PROGRAM}{' %s' * len(words)}", *words)
    except CommandFailed as error:
        if error.result.exit_code != 127:
            return error.message
        return f"it has no gpubed-lease; repair: gpubed configure {paths.name} --tags health"
    except GpubedError as error:
        return error.message
    return ""

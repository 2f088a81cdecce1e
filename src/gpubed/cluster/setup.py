"""Turns an allocation into a ready cluster: render → configure → verify."""

from __future__ import annotations

import time
from datetime import datetime

from gpubed.checks import verify
from gpubed.cluster import lease as leases
from gpubed.configuration import (
    applied,
    configure,
    due,
    inventory,
    jupyterlab_port,
    node_lease,
    roles,
    shared_storage,
    unfinished,
)
from gpubed.core import runlock, secret
from gpubed.core.errors import GpubedError
from gpubed.core.progress import emit
from gpubed.nodes.allocation import Allocation, Cluster
from gpubed.nodes.ssh import SSH
from gpubed.nodes.verification import Verification
from gpubed.testbeds import registry

_LEAST_S = 120.0  # least time to wait for each node, whatever the others took
_FOLDER = "/var/lib/gpubed/metrics"  # made by role monitoring, read by Prometheus
_FILE = f"{_FOLDER}/gpubed.prom"


def set_up(cluster: Cluster) -> None:
    """Make the nodes of an allocation a verified cluster.

    Applies only due roles, only on the nodes where they are due. Raises `ConfigurationFailed` if a
    role failed, `VerificationFailed` if at least one check failed.
    """
    bare = not cluster.plan.spec.configure or not cluster.allocation.nodes
    with unfinished.noted(cluster.paths):
        render(cluster)
        if not bare or registry.backend(cluster.allocation.backend).boots_later:
            await_nodes(cluster)
        if not bare:
            if due_roles := due.now(cluster):
                emit("roles", roles=due.document(due_roles))
                applied.outdate(cluster.paths, cluster.allocation, due_roles)
                configure.configure(cluster.paths, due=due_roles)
                if left := due.now(cluster):
                    raise GpubedError(
                        f"roles did not record that they were applied: {', '.join(sorted(left))}",
                        "gpubed_applied is the last task of each: docs/contributing/role.md",
                    )
            shared_storage.remember(cluster)
            jupyterlab_port.remember(cluster)
            if node_lease.is_on(cluster.plan):
                leases.read(cluster)
            leases.tell_nodes(cluster, anew=True)
    if not bare:
        verify_cluster(cluster)


def await_nodes(cluster: Cluster) -> None:
    """Wait until all nodes accept a login.

    Raises `Unreachable` if a node does not within the testbed's boot time.
    """
    patience = registry.backend(cluster.allocation.backend).boots_within_s
    deadline = time.monotonic() + patience
    for node in cluster.allocation.nodes:
        with SSH(node, cluster.paths) as ssh:
            # All nodes boot at the same time.
            ssh.wait_ready(max(_LEAST_S, deadline - time.monotonic()))


def render(cluster: Cluster) -> list[str]:
    """Write inventory, variables, ssh_config, known_hosts and secrets.

    Returns the files that changed, relative to the project.
    """
    for name in roles.secrets(cluster.plan) if cluster.allocation.nodes else ():
        secret.ensure_token(cluster.paths.secrets / name)
    changed = inventory.render(cluster)
    applied.prune(cluster.paths, cluster.allocation)
    return [str(path.relative_to(cluster.paths.project.root)) for path in changed]


def verify_cluster(cluster: Cluster) -> Verification:
    """Verify a cluster and store the result; no run of a job can begin meanwhile.

    Raises `VerificationFailed` if at least one check failed.
    """
    cluster.allocation.require_nodes()
    emit("phase", phase="checks", status="started")
    with runlock.measuring_if_free(cluster.paths.state, "up"):
        result = verify.verify(cluster)
    result.save(cluster.paths.verification)
    if cluster.plan.spec.services.monitoring:
        publish_metrics(cluster, result)
    emit("phase", phase="checks", status="failed" if result.count("fail") else "done")
    if result.count("fail"):
        raise verify.VerificationFailed(result)
    return result


def publish_metrics(cluster: Cluster, verification: Verification) -> None:
    """Write the verification's result and the lease's end to the head, for its Prometheus."""
    with SSH(cluster.allocation.head, cluster.paths) as head:
        if head.run("test -d %s", _FOLDER, check=False).exit_code:
            return
        end = leases.last_known(cluster.paths).granted_until
        head.write(f"{_FILE}.draft", metrics_text(cluster.allocation, verification, end))
        head.run("mv %s %s", f"{_FILE}.draft", _FILE)


def metrics_text(
    allocation: Allocation, verification: Verification, lease_end: datetime | None = None
) -> str:
    """Return the metrics in Prometheus' text format; times in seconds since 1970."""
    lines = [f"gpubed_verification_timestamp_seconds {verification.at.timestamp():.0f}"]
    for result in ("pass", "fail", "skip", "simulated"):
        count = verification.count(result)
        lines.append(f'gpubed_verification_checks{{result="{result}"}} {count}')
    # Prometheus rejects the whole file if two lines have the same labels.
    failed = {
        (c.id, c.node or allocation.cluster) for c in verification.checks if c.result == "fail"
    }
    for check, where in sorted(failed):
        lines.append(f'gpubed_verification_failed{{check="{check}",where="{where}"}} 1')
    if lease_end:
        lines.append(f"gpubed_lease_end_timestamp_seconds {lease_end.timestamp():.0f}")
    return "".join(f"{line}\n" for line in lines)

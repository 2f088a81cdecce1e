"""From an allocation to a ready cluster: render → configure → verify."""

from __future__ import annotations

import time

from gpubed.checks import verify
from gpubed.cluster import lease as leases
from gpubed.cluster import metrics
from gpubed.configuration import (
    applied,
    configure,
    due,
    inventory,
    jupyterlab_port,
    roles,
    served_folder,
    unfinished,
)
from gpubed.core import secret
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.core.progress import emit
from gpubed.nodes.allocation import Allocation
from gpubed.nodes.ssh import SSH
from gpubed.nodes.verification import Verification
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds import registry

_LEAST_S = 120.0  # that each is waited for, whenever its turn comes


def hand_over(paths: ClusterPaths, plan: ClusterPlan, allocation: Allocation) -> None:
    """Make the nodes of an allocation a verified cluster.

    Only roles that are due are applied, where they are due.

    Raises:
        ConfigurationFailed: A role failed.
        VerificationFailed: The result is not as it should be.
    """
    bare = not plan.spec.configure or not allocation.nodes
    with unfinished.noted(paths):
        render(paths, plan, allocation)
        if not bare or registry.backend(allocation.backend).boots_later:
            await_nodes(paths, allocation)
        if not bare:
            _configure(paths, plan, allocation)
            served_folder.remember(paths, plan, allocation)
            jupyterlab_port.remember(paths, plan)
            leases.tell_of_new(paths, plan, allocation)
    if not bare:  # such nodes are what the testbed calls ready
        verify_cluster(paths, plan, allocation)


def await_nodes(paths: ClusterPaths, allocation: Allocation) -> None:
    """Wait until all nodes let us in.

    Raises:
        Unreachable: One did not, within the time that the testbed's nodes may take to boot.
    """
    patience = registry.backend(allocation.backend).boots_within_s
    deadline = time.monotonic() + patience
    for node in allocation.nodes:
        with SSH(node, paths) as ssh:
            # They boot at the same time.
            ssh.wait_ready(max(_LEAST_S, deadline - time.monotonic()))


def _configure(paths: ClusterPaths, plan: ClusterPlan, allocation: Allocation) -> None:
    if due_roles := due.now(paths, plan, allocation):
        emit("roles", roles=due.document(due_roles))
        applied.outdate(paths, allocation, due_roles)
        configure.configure(paths, due=due_roles)
        if left := due.now(paths, plan, allocation):
            raise GpubedError(
                f"roles did not record that they were applied: {', '.join(sorted(left))}",
                "gpubed_applied is the last task of each: docs/contributing/role.md",
            )


def render(paths: ClusterPaths, plan: ClusterPlan, allocation: Allocation) -> list[str]:
    """Write inventory, variables, ssh_config, known_hosts and the secrets they point to.

    Returns:
        The files that changed, relative to the project.
    """
    served_folder.note_former(paths)
    for name in roles.secrets(plan) if allocation.nodes else ():
        secret.ensure_token(paths.secrets / name)
    changed = inventory.render(paths, plan, allocation)
    applied.prune(paths, allocation)
    return [str(path.relative_to(paths.project.root)) for path in changed]


def verify_cluster(paths: ClusterPaths, plan: ClusterPlan, allocation: Allocation) -> Verification:
    """Verify a cluster and keep the result.

    Raises:
        VerificationFailed: At least one check failed.
        GpubedError: The testbed lends no nodes.
    """
    allocation.require_nodes()
    emit("phase", phase="checks", status="started")
    result = verify.verify(paths, plan, allocation)
    result.save(paths.verification)
    if plan.spec.services.monitoring:
        metrics.publish(paths, allocation, result)
    emit("phase", phase="checks", status="failed" if result.count("fail") else "done")
    if result.count("fail"):
        raise verify.VerificationFailed(result)
    return result

"""Tracks whether the last configuration of a cluster was completed.

The cluster's record says so from the moment when an engine changes a node, else when the first
role is applied; a run that was killed, or that failed, leaves it there. Before that, nodes are as
they were, and after it only checks are left: they say themselves what is wrong, and the cluster
can be used to find out why.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpubed.core import record, runlock
from gpubed.core.errors import GpubedError, Locked, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.cluster import Cluster

CONFIGURING, INTERRUPTED = "configuring", "interrupted"
# The verbs that hold a cluster and apply roles, or will; a full disk leaves a lock without one.
_BY_HAND = "configure"
_CONFIGURES = {"up", _BY_HAND, ""}


@contextmanager
def noted(paths: ClusterPaths, *, whole: bool = True) -> Iterator[None]:
    """Note that nodes are not all as the specification says, until the end is reached.

    Args:
        paths: The cluster's paths.
        whole: Whether all that is due is done by then; a part leaves what was noted before.
    """
    with record.changed(paths) as known:
        stays = not whole and known.unfinished
        known.unfinished = known.unfinished or "roles"
    yield
    if not stays:
        with record.changed(paths) as known:
            known.unfinished = ""


def state(paths: ClusterPaths) -> str:
    """Return `configuring` or `interrupted`, or "" if the last run was completed."""
    if not record.read(paths).unfinished:
        return ""
    who = runlock.holder(paths.state)
    return CONFIGURING if who and who.verb in _CONFIGURES else INTERRUPTED


def require_still(paths: ClusterPaths) -> None:
    """Check that no run is applying roles to the nodes.

    Raises:
        Locked: A run is applying roles.
    """
    who = runlock.holder(paths.state)
    if who and (who.verb == _BY_HAND or state(paths) == CONFIGURING):
        runlock.require_free(paths.state)


def require_none(paths: ClusterPaths) -> None:
    """Check that the last configuration of the cluster was completed.

    Raises:
        Locked: A run is at work.
        GpubedError: The last run was not completed.
    """
    now = state(paths)
    if now == CONFIGURING:
        who = runlock.holder(paths.state)
        raise Locked(f"{paths.name} is not ready: {who} is at work", "wait for its end")
    if now:
        raise GpubedError(
            f"the last configuration of {paths.name} did not come to its end",
            f"gpubed up {paths.name} goes on with it",
        )


def require_configured(cluster: Cluster) -> None:
    """Refuse to use what roles install on nodes that were to stay as the testbed made them.

    Raises:
        UsageError: The specification says `configure: false`.
    """
    if cluster.allocation.nodes and not cluster.plan.spec.configure:
        raise UsageError(
            f"nothing is installed on the nodes of {cluster.name}: its specification says "
            "configure: false",
            f"take that line out of {cluster.paths.spec}, then: gpubed up {cluster.name}",
        )

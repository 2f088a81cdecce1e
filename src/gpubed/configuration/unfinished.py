"""Tracks whether the last configuration of a cluster was completed.

The cluster's record has a mark (`unfinished`) from the first change of a node or role until all
roles are applied; a killed or failed run leaves it. Failed checks set no mark, so that jobs can run
to find the cause.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpubed.core import record, runlock
from gpubed.core.errors import GpubedError, Locked, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Cluster

CONFIGURING, INTERRUPTED = "configuring", "interrupted"
_CONFIGURE = "configure"
_CONFIGURES = {"up", _CONFIGURE, ""}  # verbs that apply roles; a lock on a full disk has no verb


@contextmanager
def noted(paths: ClusterPaths, *, whole: bool = True) -> Iterator[None]:
    """Mark the configuration as unfinished until the body ends.

    With `whole=False`, for a body that applies some of the due roles, an earlier mark stays.
    """
    with record.changed(paths) as cluster:
        stays = not whole and cluster.unfinished
        cluster.unfinished = cluster.unfinished or "roles"
    yield
    if not stays:
        with record.changed(paths) as cluster:
            cluster.unfinished = ""


def state(paths: ClusterPaths) -> str:
    """Return `configuring` or `interrupted`; empty if the last configuration was completed."""
    if not record.read(paths).unfinished:
        return ""
    holder = runlock.holder(paths.state)
    return CONFIGURING if holder and holder.verb in _CONFIGURES else INTERRUPTED


def require_still(paths: ClusterPaths) -> None:
    """Raise `Locked` while `up` or `configure` applies roles to the nodes."""
    holder = runlock.holder(paths.state)
    if holder and (holder.verb == _CONFIGURE or state(paths) == CONFIGURING):
        runlock.require_free(paths.state)


def require_none(paths: ClusterPaths) -> None:
    """Refuse a cluster that is not fully configured.

    Raises:
        Locked: `up` or `configure` is running.
        GpubedError: The last configuration was not completed.
    """
    now = state(paths)
    if now == CONFIGURING:
        holder = runlock.holder(paths.state)
        raise Locked(f"{paths.name} is not ready: {holder} is running", "wait for its end")
    if now:
        raise GpubedError(
            f"the last configuration of {paths.name} was not completed",
            f"gpubed up {paths.name} completes it",
        )


def require_configured(cluster: Cluster) -> None:
    """Raise a `UsageError` if the specification says `configure: false`."""
    if cluster.allocation.nodes and not cluster.plan.spec.configure:
        raise UsageError(
            f"nothing is installed on the nodes of {cluster.name}: its specification says "
            "configure: false",
            f"remove that line from {cluster.paths.spec}, then: gpubed up {cluster.name}",
        )

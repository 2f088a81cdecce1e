"""Tracks whether the last configuration of a cluster was completed.

The cluster's record has the mark from the first change of a node or role until all roles are
applied; a killed or failed run leaves it. Checks come after that, so that a cluster with failed
checks can be used to find out why.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gpubed.core import record, runlock
from gpubed.core.errors import GpubedError, Locked, UsageError
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Cluster

CONFIGURING, INTERRUPTED = "configuring", "interrupted"
# The verbs that apply roles; a lock written on a full disk has no verb.
_BY_HAND = "configure"
_CONFIGURES = {"up", _BY_HAND, ""}


@contextmanager
def noted(paths: ClusterPaths, *, whole: bool = True) -> Iterator[None]:
    """Mark the configuration as unfinished until the body ends.

    A body that does not do the `whole` of what is due keeps an earlier mark.
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
    """Raise `Locked` if a run is applying roles to the nodes."""
    who = runlock.holder(paths.state)
    if who and (who.verb == _BY_HAND or state(paths) == CONFIGURING):
        runlock.require_free(paths.state)


def require_none(paths: ClusterPaths) -> None:
    """Raise `Locked` during a run, `GpubedError` if the last configuration was not completed."""
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
    """Raise a `UsageError` if the specification says `configure: false`."""
    if cluster.allocation.nodes and not cluster.plan.spec.configure:
        raise UsageError(
            f"nothing is installed on the nodes of {cluster.name}: its specification says "
            "configure: false",
            f"take that line out of {cluster.paths.spec}, then: gpubed up {cluster.name}",
        )

"""Whether the last `up` of a cluster came to its end, for who looks meanwhile or afterwards.

A file says that one has begun to change things; its end removes it. A run that was killed
leaves it, and so does one that failed, unless it came as far as to verify: then the checks say
what is wrong, and the cluster can be used to find out why.
"""

from __future__ import annotations

from pathlib import Path

from gpubed import runlock
from gpubed.errors import GpubedError
from gpubed.paths import ClusterPaths

CONFIGURING, INTERRUPTED = "configuring", "interrupted"


def begin(cluster: ClusterPaths) -> None:
    """Note that a run changes the cluster from now on."""
    cluster.unfinished.touch()


def end(cluster: ClusterPaths) -> None:
    """Note that it came to its end."""
    cluster.unfinished.unlink(missing_ok=True)


def state(cluster: ClusterPaths) -> str:
    """Return `configuring` or `interrupted`; empty where the last run came to its end."""
    if not cluster.unfinished.exists():
        return ""
    if runlock.holder(cluster.state):
        return CONFIGURING
    begun, verified = _written(cluster.unfinished), _written(cluster.verification)
    return "" if verified >= begun else INTERRUPTED


def _written(path: Path) -> int:
    return path.stat().st_mtime_ns if path.exists() else 0


def require_none(cluster: ClusterPaths) -> None:
    """Refuse to use a cluster whose nodes are not all as the specification says.

    Raises:
        GpubedError: An `up` is at work, or the last one did not come to its end.
    """
    now = state(cluster)
    if now == CONFIGURING:
        who = runlock.holder(cluster.state)
        raise GpubedError(f"{cluster.name} is not ready: {who} is at work", "wait for its end")
    if now:
        again = f"gpubed up {cluster.name}"
        raise GpubedError(f"the last `{again}` did not come to its end", f"{again} goes on with it")

"""Remembers the port at which JupyterLab was set up last; all services are behind it.

cluster.yml may have a port that was not applied yet; the record keeps the applied one.
"""

from __future__ import annotations

from gpubed.configuration import due
from gpubed.core import record
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.cluster import Cluster

ROLE = "jupyterlab"


def remember(cluster: Cluster) -> None:
    """Record the port of JupyterLab after its setup, or that there is none."""
    lab = cluster.plan.spec.services.jupyterlab
    port = lab.port if lab else None
    if _kept(cluster.paths) != port:
        with record.changed(cluster.paths) as known:
            known.jupyterlab_port = port


def is_due(cluster: Cluster) -> bool:
    """Return whether JupyterLab is not set up as declared yet."""
    return cluster.allocation.head.name in due.now(cluster).get(ROLE, ())


def port(cluster: Cluster) -> int:
    """Return the applied port, or the declared one if no other is recorded.

    Raises `LookupError` if the specification has no JupyterLab.
    """
    lab = cluster.plan.spec.services.jupyterlab
    if lab is None:
        raise LookupError("the cluster has no JupyterLab")
    kept = _kept(cluster.paths)
    # A playbook run by hand records no port, but it does record that the role was applied.
    if kept in (None, lab.port) or not is_due(cluster):
        return lab.port
    return kept


def pending(cluster: Cluster) -> list[str]:
    """Return a line about JupyterLab settings of cluster.yml that are not applied yet, if any."""
    lab, kept = cluster.plan.spec.services.jupyterlab, _kept(cluster.paths)
    if kept is None or not cluster.allocation.nodes:
        return []
    if lab is None:
        wanted = "no JupyterLab"
    elif lab.port != (kept := port(cluster)):
        wanted = f"port {lab.port} for JupyterLab"
    else:
        return []
    return [
        f"cluster.yml says {wanted}, which is at port {kept}: gpubed up {cluster.name} applies it"
    ]


def _kept(paths: ClusterPaths) -> int | None:
    return record.read(paths).jupyterlab_port

"""Records the port on which JupyterLab runs, which also serves the status page and other services.

`cluster.yml` may have another port that is not applied yet.
"""

from __future__ import annotations

from gpubed.configuration import due
from gpubed.core import record
from gpubed.nodes.allocation import Cluster


def remember(cluster: Cluster) -> None:
    """Record the port of JupyterLab after its setup; None without JupyterLab."""
    lab = cluster.plan.spec.services.jupyterlab
    port = lab.port if lab else None
    if record.read(cluster.paths).jupyterlab_port != port:
        with record.changed(cluster.paths) as changed:
            changed.jupyterlab_port = port


def is_due(cluster: Cluster) -> bool:
    """Return whether JupyterLab is not set up as declared yet."""
    return cluster.allocation.head.name in due.now(cluster).get("jupyterlab", ())


def port(cluster: Cluster) -> int:
    """Return the applied port, or the declared one if none is recorded.

    Raises `LookupError` if the specification has no JupyterLab.
    """
    lab = cluster.plan.spec.services.jupyterlab
    if lab is None:
        raise LookupError("the cluster has no JupyterLab")
    return record.read(cluster.paths).jupyterlab_port or lab.port


def pending(cluster: Cluster) -> list[str]:
    """Return a line about a port of JupyterLab in cluster.yml that is not applied yet, if any."""
    lab, applied = cluster.plan.spec.services.jupyterlab, record.read(cluster.paths).jupyterlab_port
    if applied is None or not cluster.allocation.nodes or (lab and lab.port == applied):
        return []
    wanted = f"port {lab.port} for JupyterLab" if lab else "no JupyterLab"
    where = f"which is at port {applied}: gpubed up {cluster.name} applies it"
    return [f"cluster.yml says {wanted}, {where}"]

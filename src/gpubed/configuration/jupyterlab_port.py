"""At which port JupyterLab is, the door of all services, whatever cluster.yml says by now.

A port that was edited and not applied leads nowhere. So the one that was applied last is kept
beside the state, and counts until the role has been applied with another one.
"""

from __future__ import annotations

from gpubed.configuration import due
from gpubed.core import record
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.cluster import Cluster

ROLE = "jupyterlab"


def remember(cluster: Cluster) -> None:
    """Keep at which port JupyterLab is, once it is there; nothing where there is none."""
    lab = cluster.plan.spec.services.jupyterlab
    port = lab.port if lab else None
    if _kept(cluster.paths) != port:
        with record.changed(cluster.paths) as known:
            known.jupyterlab_port = port


def is_due(cluster: Cluster) -> bool:
    """Say whether JupyterLab has yet to be set up as declared."""
    return cluster.allocation.head.name in due.now(cluster).get(ROLE, ())


def port(cluster: Cluster) -> int:
    """Return the port that was applied; the declared one where nobody knows.

    Raises:
        LookupError: The specification has no JupyterLab.
    """
    lab = cluster.plan.spec.services.jupyterlab
    if lab is None:
        raise LookupError("the cluster has no JupyterLab")
    kept = _kept(cluster.paths)
    # Whoever ran the playbook by hand has kept nothing, and the role has.
    if kept in (None, lab.port) or not is_due(cluster):
        return lab.port
    return kept


def pending(cluster: Cluster) -> list[str]:
    """Say what of JupyterLab cluster.yml has otherwise than it was applied; empty where nothing."""
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

"""At which port JupyterLab is, the door of all services, whatever cluster.yml says by now.

A port that was edited and not applied leads nowhere. So the one that was applied last is kept
beside the state, and counts until the role has been applied with another one.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from gpubed.configuration import due
from gpubed.core import files, reading
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Port
from gpubed.nodes.cluster import Cluster

ROLE = "jupyterlab"


class _Port(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    version: Literal[1] = 1
    port: Port


def remember(cluster: Cluster) -> None:
    """Keep at which port JupyterLab is, once it is there; nothing where there is none."""
    lab = cluster.plan.spec.services.jupyterlab
    if lab is None:
        cluster.paths.door.unlink(missing_ok=True)
    elif _kept(cluster.paths) != lab.port:
        files.write(cluster.paths.door, _Port(port=lab.port).model_dump_json().encode())


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
    try:
        return reading.file(paths.door).json(_Port).port
    except reading.Unreadable:  # a former version kept none, and the next `up` writes it
        return None

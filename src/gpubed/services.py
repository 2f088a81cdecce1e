"""The services of a cluster: where they are, and whether they answer as they must."""

from __future__ import annotations

import http.client
import ssl

from gpubed.allocation import Allocation
from gpubed.errors import GpubedError
from gpubed.paths import ClusterPaths
from gpubed.plan import ClusterPlan

JUPYTERLAB_TOKEN = "jupyterlab_token"  # noqa: S105  # a file's name
_TIMEOUT = 10.0


def urls(plan: ClusterPlan, allocation: Allocation) -> list[dict[str, str]]:
    """Return name and URL of each service, without any token."""
    lab = plan.spec.services.jupyterlab
    if lab is None:
        return []
    url = f"https://{allocation.head.control_address}:{lab.port}/lab"
    return [{"name": "jupyterlab", "url": url}]


def token_url(cluster: ClusterPaths, plan: ClusterPlan, allocation: Allocation) -> str:
    """Return JupyterLab's URL with its token.

    Raises:
        GpubedError: The cluster has no JupyterLab.
    """
    for service in urls(plan, allocation):
        return f"{service['url']}?token={_token(cluster)}"
    raise GpubedError(
        f"cluster {cluster.name} has no JupyterLab", "set services.jupyterlab in cluster.yml"
    )


def probe(cluster: ClusterPaths, plan: ClusterPlan, allocation: Allocation) -> None:
    """Ask each service whether it is alive.

    Raises:
        GpubedError: A service does not answer.
    """
    if plan.spec.services.jupyterlab:
        status = jupyterlab_status(cluster, plan, allocation, _token(cluster))
        if status != http.HTTPStatus.OK:
            raise GpubedError(f"JupyterLab answers {status}", f"gpubed configure {cluster.name}")


def jupyterlab_status(
    cluster: ClusterPaths, plan: ClusterPlan, allocation: Allocation, token: str
) -> int:
    """Ask JupyterLab for its status; the server is checked against its own certificate.

    Returns:
        The HTTP status code.

    Raises:
        GpubedError: It is not there, or shows another certificate.
    """
    lab = plan.spec.services.jupyterlab
    if lab is None:
        raise LookupError("the cluster has no JupyterLab")
    try:
        context = ssl.create_default_context(cafile=str(cluster.state / "jupyterlab.crt"))
        connection = http.client.HTTPSConnection(
            allocation.head.control_address, lab.port, timeout=_TIMEOUT, context=context
        )
        connection.request("GET", "/api/status", headers={"Authorization": f"token {token}"})
        return connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise GpubedError(
            f"JupyterLab does not answer: {error}", f"gpubed configure {cluster.name}"
        ) from error


def _token(cluster: ClusterPaths) -> str:
    return (cluster.secrets / JUPYTERLAB_TOKEN).read_text(encoding="ascii").strip()

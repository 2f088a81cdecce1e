"""The services of a cluster: their URLs, and whether they answer."""

from __future__ import annotations

import http.client
import ssl

from gpubed.access import tunnel
from gpubed.configuration import jupyterlab_port
from gpubed.core import secret
from gpubed.core.errors import GpubedError
from gpubed.nodes.allocation import Cluster
from gpubed.testbeds import registry
from gpubed.testbeds.base import JobBackend

STATUS = "status"
_PAGE = "/gpubed/status"
_TIMEOUT = 10.0


def urls(cluster: Cluster) -> list[dict[str, str]]:
    """Return name and URL of each service as it was set up last, without any token."""
    spec, backend = cluster.plan.spec, registry.backend(cluster.plan.backend)
    if isinstance(backend, JobBackend):
        return [{"name": name, "url": url} for name, url in backend.links(spec).items()]
    if spec.services.jupyterlab is None:
        return []
    # A head behind other hosts is reached through the tunnel of `gpubed open`.
    head = cluster.allocation.head
    host = "localhost" if head.via else head.control_address
    at = f"https://{host}:{jupyterlab_port.port(cluster)}"
    found = [{"name": "jupyterlab", "url": f"{at}/lab"}]
    if spec.services.monitoring:
        found.append({"name": STATUS, "url": f"{at}{_PAGE}"})
    return found


def token_url(cluster: Cluster, name: str = "jupyterlab") -> str:
    """Return the URL of JupyterLab or, through it, of the status page, with the token.

    On a testbed that only runs jobs, it is the URL of the testbed's own notebooks, without a token.
    Raises `GpubedError` if the cluster does not have the service.
    """
    if not cluster.allocation.nodes and name != STATUS:
        for service in urls(cluster):
            return service["url"]  # the testbed's own notebooks have their own login
        cluster.allocation.require_nodes()
    for service in urls(cluster):
        if service["name"] == name:
            return f"{service['url']}?token={secret.text(cluster.paths.jupyterlab_token)}"
    cluster.allocation.require_nodes()
    if name == STATUS and cluster.plan.spec.services.jupyterlab:
        raise GpubedError(
            f"cluster {cluster.name} is not monitored",
            f"set 'monitoring: {{}}' under services in cluster.yml, then: gpubed up {cluster.name}",
        )
    raise GpubedError(
        f"cluster {cluster.name} has no JupyterLab", "set services.jupyterlab in cluster.yml"
    )


def answers(cluster: Cluster) -> dict[str, str]:
    """Ask each service whether it is alive; return what is wrong by name, empty if nothing is."""
    found = {}
    asked = {"jupyterlab": jupyterlab_status, STATUS: page_status}
    for service in urls(cluster):
        ask, name = asked[service["name"]], service["name"]
        try:
            status = ask(cluster)
            found[name] = "" if status == http.HTTPStatus.OK else f"{name} answers {status}"
        except GpubedError as error:
            found[name] = error.headline
    return found


def jupyterlab_status(cluster: Cluster, token: str | None = None, page: str = "/api/status") -> int:
    """Ask JupyterLab for a page, checking its certificate against the cluster's own.

    Returns the HTTP status code. Without a `token`, the right one is sent. Raises `GpubedError` if
    JupyterLab does not answer, or shows another certificate.
    """
    at, certificate = jupyterlab_port.port(cluster), cluster.paths.jupyterlab_certificate
    if not certificate.exists():
        raise GpubedError("JupyterLab is not set up yet", f"gpubed up {cluster.name}")
    sent = {"Authorization": f"token {token or secret.text(cluster.paths.jupyterlab_token)}"}
    try:
        context = ssl.create_default_context(cafile=str(certificate))
        with tunnel.to_head(cluster, at) as (host, port):
            connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT, context=context)
            connection.request("GET", page, headers=sent)
            return connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise GpubedError(
            f"JupyterLab does not answer: {error}", f"gpubed configure {cluster.name}"
        ) from error


def page_status(cluster: Cluster) -> int:
    """Ask for the status page with the right token; see `jupyterlab_status`."""
    return jupyterlab_status(cluster, page=_PAGE)

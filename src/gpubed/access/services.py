"""URLs and health of a cluster's services."""

from __future__ import annotations

import http
from dataclasses import dataclass
from pathlib import Path

from gpubed.access import https, serving, tracking
from gpubed.configuration import jupyterlab_port
from gpubed.core import secret
from gpubed.core.errors import GpubedError
from gpubed.nodes.allocation import Cluster
from gpubed.testbeds import registry
from gpubed.testbeds.base import JobBackend

STATUS, HUB, TRACKING, SERVING = "status", "hub", "tracking", "serving"
# What each is called, and its key in the specification.
_PRODUCTS = {
    "jupyterlab": ("JupyterLab", "jupyterlab"),
    STATUS: ("status page", "monitoring"),
    HUB: ("JupyterHub", "hub"),
    TRACKING: ("MLflow", "tracking"),
}
_PAGE = "/gpubed/status"


@dataclass(frozen=True)
class Entrance:
    """How a browser gets into a service.

    Attributes:
        port: Its port on the head; 0 on a testbed that only runs jobs.
        certificate: The certificate of the authority that signed its own, on the controller.
        login: Where the login is; empty if the URL has a token.
    """

    port: int
    certificate: Path
    login: str = ""


def urls(cluster: Cluster) -> list[dict[str, str]]:
    """Return name and URL, without a token, of each service as it was set up last."""
    spec, backend = cluster.plan.spec, registry.backend(cluster.plan.backend)
    if isinstance(backend, JobBackend):
        return [{"name": name, "url": url} for name, url in backend.links(spec).items()]
    # A head behind other hosts is reached through the tunnel of `gpubed open`.
    head = cluster.allocation.head
    host = "localhost" if head.via else head.control_address
    services = list[dict[str, str]]()
    if spec.services.jupyterlab:
        base = f"https://{host}:{jupyterlab_port.port(cluster)}"
        services.append({"name": "jupyterlab", "url": f"{base}/lab"})
        if spec.services.monitoring:
            services.append({"name": STATUS, "url": f"{base}{_PAGE}"})
    for name, page in ((HUB, ""), (TRACKING, ""), (SERVING, "v2")):
        if service := getattr(spec.services, name):
            services.append({"name": name, "url": f"https://{host}:{service.port}/{page}"})
    return services


def token_url(cluster: Cluster, name: str = "jupyterlab") -> str:
    """Return the URL of JupyterLab, or of the status page behind it, with the token.

    On a testbed that only runs jobs, returns the URL of the testbed's own notebooks, without a
    token. Raises `GpubedError` if the cluster does not have the service.
    """
    services = urls(cluster)
    if services and not cluster.allocation.nodes and name != STATUS:
        return services[0]["url"]  # the testbed's own notebooks have their own login
    for service in services:
        if service["name"] == name and name in (HUB, TRACKING):  # they ask for a login
            return service["url"]
        if service["name"] == name:
            return f"{service['url']}?token={secret.text(cluster.paths.jupyterlab_token)}"
    cluster.allocation.require_nodes()
    product, key = _PRODUCTS[name]
    if name == STATUS and not cluster.plan.spec.services.jupyterlab:
        product, key = _PRODUCTS["jupyterlab"]
    raise GpubedError(
        f"cluster {cluster.name} has no {product}",
        f"set '{key}: {{}}' under services in cluster.yml, then: gpubed up {cluster.name}",
    )


def entrance(cluster: Cluster, name: str) -> Entrance:
    """Return how a browser gets into a service that the cluster has."""
    declared, paths = cluster.plan.spec.services, cluster.paths
    if name == HUB and declared.hub:
        login = f"first passwords, a file for each researcher: {paths.hub_passwords}"
        return Entrance(declared.hub.port, https.certificate(cluster, HUB), login)
    if name == TRACKING:
        look = f"gpubed ssh {cluster.name} head -- cat .mlflow/credentials"
        login = f"log in as {tracking.ACCOUNT}: '{look}' shows its password"
        return Entrance(tracking.port(cluster), https.certificate(cluster, TRACKING), login)
    has_lab = declared.jupyterlab and cluster.allocation.nodes
    port = jupyterlab_port.port(cluster) if has_lab else 0
    return Entrance(port, https.certificate(cluster, "jupyterlab"))


def answers(cluster: Cluster) -> dict[str, str]:
    """Return the fault of each service by name, empty if it answers."""
    faults = {}
    requests = {
        "jupyterlab": jupyterlab_status,
        STATUS: page_status,
        HUB: hub_status,
        TRACKING: tracking.status,
        SERVING: serving.status,
    }
    for name in requests.keys() & {service["name"] for service in urls(cluster)}:
        try:
            status = requests[name](cluster)
            faults[name] = "" if status == http.HTTPStatus.OK else f"{name} answers {status}"
        except GpubedError as error:
            faults[name] = error.headline
    return faults


def hub_status(cluster: Cluster, token: str = "") -> int:
    """Request JupyterHub's version, or with a token its users; return the HTTP status code.

    Raises `GpubedError` as `https.request` does.
    """
    page, port = "/hub/api/users" if token else "/hub/api/", entrance(cluster, HUB).port
    return https.request(cluster, HUB, port, page, f"token {token}")[0]


def jupyterlab_status(cluster: Cluster, token: str = "", page: str = "/api/status") -> int:
    """Request a page of JupyterLab, by default with the right token; return the HTTP status code.

    Raises `GpubedError` as `https.request` does.
    """
    login = f"token {token or secret.text(cluster.paths.jupyterlab_token)}"
    return https.request(cluster, "jupyterlab", jupyterlab_port.port(cluster), page, login)[0]


def page_status(cluster: Cluster) -> int:
    """Request the status page; see `jupyterlab_status`."""
    return jupyterlab_status(cluster, page=_PAGE)

"""The services of a cluster: where they are, and whether they answer as they must."""

from __future__ import annotations

import http.client
import ssl

from gpubed.access import tunnel
from gpubed.configuration import jupyterlab_port
from gpubed.core import secret
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.allocation import Allocation
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds import registry
from gpubed.testbeds.base import JobBackend

STATUS = "status"
_PAGE = "/gpubed/status"
_TIMEOUT = 10.0


def urls(paths: ClusterPaths, plan: ClusterPlan, allocation: Allocation) -> list[dict[str, str]]:
    """Return name and URL of each service, without any token: where it was set up last."""
    backend = registry.backend(plan.backend)
    if isinstance(backend, JobBackend):
        return [{"name": name, "url": url} for name, url in backend.links(plan.spec).items()]
    if plan.spec.services.jupyterlab is None:
        return []
    # Behind other hosts it is reached through a tunnel: `gpubed open`.
    host = "localhost" if allocation.head.via else allocation.head.control_address
    at = f"https://{host}:{jupyterlab_port.port(paths, plan, allocation)}"
    found = [{"name": "jupyterlab", "url": f"{at}/lab"}]
    if plan.spec.services.monitoring:
        found.append({"name": STATUS, "url": f"{at}{_PAGE}"})
    return found


def token_url(
    paths: ClusterPaths, plan: ClusterPlan, allocation: Allocation, name: str = "jupyterlab"
) -> str:
    """Return the URL of JupyterLab, or of the status page behind its door, with the token.

    On a testbed that runs jobs only it is that of the testbed's own notebooks, without one.

    Raises:
        GpubedError: The cluster does not have it.
    """
    if not allocation.nodes and name != STATUS:
        # The testbed's own, with a login of its own.
        return urls(paths, plan, allocation)[0]["url"]
    for service in urls(paths, plan, allocation):
        if service["name"] == name:
            return f"{service['url']}?token={_token(paths)}"
    allocation.require_nodes()
    if name == STATUS and plan.spec.services.jupyterlab:
        raise GpubedError(
            f"cluster {paths.name} is not monitored",
            f"set 'monitoring: {{}}' under services in cluster.yml, then: gpubed up {paths.name}",
        )
    raise GpubedError(
        f"cluster {paths.name} has no JupyterLab", "set services.jupyterlab in cluster.yml"
    )


def answers(paths: ClusterPaths, plan: ClusterPlan, allocation: Allocation) -> dict[str, str]:
    """Ask each service whether it is alive; return what is wrong by its name, empty if nothing."""
    found = {}
    asked = {"jupyterlab": jupyterlab_status, STATUS: page_status}
    for service in urls(paths, plan, allocation):
        ask, name = asked[service["name"]], service["name"]
        try:
            status = ask(paths, plan, allocation)
            found[name] = "" if status == http.HTTPStatus.OK else f"{name} answers {status}"
        except GpubedError as error:
            found[name] = error.message
    return found


def jupyterlab_status(
    paths: ClusterPaths, plan: ClusterPlan, allocation: Allocation, token: str | None = None
) -> int:
    """Ask JupyterLab for its status; the server is checked against its own certificate.

    Args:
        token: The right one by default.

    Returns:
        The HTTP status code.

    Raises:
        GpubedError: It is not there, or shows another certificate.
    """
    return _status(paths, plan, allocation, token or _token(paths), "/api/status")


def page_status(paths: ClusterPaths, plan: ClusterPlan, allocation: Allocation) -> int:
    """Ask for the status page with the right token; see `jupyterlab_status`."""
    return _status(paths, plan, allocation, _token(paths), _PAGE)


def _status(
    paths: ClusterPaths, plan: ClusterPlan, allocation: Allocation, token: str, path: str
) -> int:
    at = jupyterlab_port.port(paths, plan, allocation)
    if not paths.jupyterlab_certificate.exists():
        raise GpubedError("JupyterLab is not set up yet", f"gpubed up {paths.name}")
    try:
        context = ssl.create_default_context(cafile=str(paths.jupyterlab_certificate))
        with tunnel.to_head(paths, allocation, at) as (host, port):
            connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT, context=context)
            connection.request("GET", path, headers={"Authorization": f"token {token}"})
            return connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        raise GpubedError(
            f"JupyterLab does not answer: {error}", f"gpubed configure {paths.name}"
        ) from error


def _token(paths: ClusterPaths) -> str:
    return secret.text(paths.jupyterlab_token)

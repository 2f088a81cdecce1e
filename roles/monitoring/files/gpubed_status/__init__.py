"""The status page: an extension of JupyterLab's server, behind its token and TLS.

Users of JupyterLab can see the page, but cannot send other queries to Prometheus.
The page changes nothing on the cluster.
"""

from __future__ import annotations

from typing import Any


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    return [{"module": "gpubed_status"}]


def _load_jupyter_server_extension(app: Any) -> None:
    from jupyter_server.utils import url_path_join

    from gpubed_status.handler import StatusHandler

    path = url_path_join(app.web_app.settings["base_url"], "gpubed", "status")
    app.web_app.add_handlers(".*$", [(path, StatusHandler)])

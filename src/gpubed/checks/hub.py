"""Checks JupyterHub: it answers over TLS, and tells nothing to a stranger."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Iterator
from http import HTTPStatus

from gpubed.access import tunnel
from gpubed.checks.context import Context, judged, skipped
from gpubed.checks.registry import Stage, at
from gpubed.core.errors import GpubedError
from gpubed.nodes.verification import Check

_TIMEOUT_S = 20.0
_ASKED = {
    "hub.tls": ("/hub/api/", {}, HTTPStatus.OK),
    "hub.stranger": ("/hub/api/users", {"Authorization": "token wrong"}, HTTPStatus.FORBIDDEN),
}


@at(Stage.SERVICES, "hub.tls", "hub.stranger")
def hub(context: Context) -> Iterator[Check]:
    """Ask the hub for its version, and with a wrong token for its users."""
    declared = context.plan.spec.services.hub
    if declared is None:
        yield from skipped(tuple(_ASKED), "the cluster has no JupyterHub")
        return
    repair = f"repair: gpubed configure {context.cluster.name} --tags hub"
    for id_, (page, headers, wanted) in _ASKED.items():
        status, reason = None, ""
        try:
            tls = ssl.create_default_context(cafile=str(context.cluster.paths.hub_certificate))
            with tunnel.to_head(context.cluster, declared.port) as (host, port):
                way = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT_S, context=tls)
                way.request("GET", page, headers=headers)
                status = way.getresponse().status
            reason = "" if status == wanted else f"it answers {status} to {page}; {repair}"
        except (GpubedError, OSError, http.client.HTTPException) as error:
            reason = f"it does not answer: {error}; {repair}"
        yield judged(id_, context.allocation.head.name, reason, status, str(int(wanted)))

"""Checks JupyterHub: it answers over TLS, and tells nothing to a stranger."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus

from gpubed.access import https
from gpubed.checks.context import Context, judged, skipped
from gpubed.checks.registry import Stage, at
from gpubed.core.errors import GpubedError
from gpubed.nodes.verification import Check

_ASKED = {
    "hub.tls": ("/hub/api/", HTTPStatus.OK),
    "hub.stranger": ("/hub/api/users", HTTPStatus.FORBIDDEN),
}


@at(Stage.SERVICES, "hub.tls", "hub.stranger")
def hub(context: Context) -> Iterator[Check]:
    """Ask the hub for its version and for its users, with a wrong token."""
    declared = context.plan.spec.services.hub
    if declared is None:
        yield from skipped(_ASKED, "the cluster has no JupyterHub")
        return
    for id_, (page, wanted) in _ASKED.items():
        status, reason = None, ""
        try:
            status, _ = https.request(context.cluster, "hub", declared.port, page, "token wrong")
            reason = "" if status == wanted else f"it answers {status} to {page}"
        except GpubedError as error:
            reason = error.message
        yield judged(id_, context.allocation.head.name, reason, status, str(int(wanted)))

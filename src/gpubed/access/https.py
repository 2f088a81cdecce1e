"""Requests pages of the head's services, and knows each by the certificate of its authority."""

from __future__ import annotations

import http.client
import ssl
from pathlib import Path

from gpubed.access import tunnel
from gpubed.core.errors import GpubedError
from gpubed.nodes.allocation import Cluster

_TIMEOUT_S = 20.0
_LONGEST = 2**20  # bytes of an answer


def certificate(cluster: Cluster, service: str) -> Path:
    """Return the certificate of the authority that signed a service's own."""
    return cluster.paths.state / f"{service}.crt"


def request(
    cluster: Cluster,
    service: str,
    port: int,
    page: str,
    login: str,
    *,
    method: str = "GET",
    body: bytes = b"",
) -> tuple[int, str]:
    """Request a page of a service; return the HTTP status code and the answer.

    Args:
        service: The role that sets it up.
        port: Its port on the head.
        login: The header Authorization.
        body: A JSON document.

    Raises:
        GpubedError: It is not set up yet, does not answer, or shows another certificate.
    """
    authority = certificate(cluster, service)
    if not authority.exists():
        raise GpubedError(f"{service} is not set up yet", f"gpubed up {cluster.name}")
    headers = {"Authorization": login, "Content-Type": "application/json"}
    try:
        context = ssl.create_default_context(cafile=str(authority))
        with tunnel.to_head(cluster, port) as (host, local):
            way = http.client.HTTPSConnection(host, local, timeout=_TIMEOUT_S, context=context)
            way.request(method, page, body, headers)
            answer = way.getresponse()
            return answer.status, answer.read(_LONGEST).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        fix = f"gpubed configure {cluster.name} --tags {service}"
        raise GpubedError(f"{service} does not answer: {error}", fix) from error

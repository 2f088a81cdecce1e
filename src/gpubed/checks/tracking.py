"""Checks that MLflow accepts a password over TLS, and refuses others."""

from __future__ import annotations

import http
from collections.abc import Iterator

from gpubed.access import tracking
from gpubed.checks.context import Context, judged, skipped
from gpubed.checks.registry import Stage, at
from gpubed.core.errors import GpubedError
from gpubed.nodes.verification import Check

_IDS = ("tracking.tls", "tracking.wrong_password")


@at(Stage.SERVICES, *_IDS)
def mlflow(context: Context) -> Iterator[Check]:
    """Call MLflow with the right password and with a wrong one."""
    if not tracking.port(context.cluster):
        yield from skipped(_IDS, "the cluster has no MLflow")
        return
    asked = (("", http.HTTPStatus.OK), ("wrong", http.HTTPStatus.UNAUTHORIZED))
    for id_, (given, wanted) in zip(_IDS, asked, strict=True):
        status, reason = None, ""
        try:
            status = tracking.status(context.cluster, given)
            reason = "" if status == wanted else f"answered {status} instead of {wanted}"
        except GpubedError as error:
            reason = error.message
        yield judged(id_, context.allocation.head.name, reason, status, str(int(wanted)))

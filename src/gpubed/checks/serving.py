"""Checks served models: wrong tokens are refused, and every wanted replica is ready."""

from __future__ import annotations

import http
from collections.abc import Iterator

from gpubed.access import serving
from gpubed.checks.context import Context, judged, skipped
from gpubed.checks.registry import Stage, at
from gpubed.core.errors import GpubedError
from gpubed.nodes.verification import Check

_IDS = ("serving.login", "serving.ready")


@at(Stage.SERVICES, *_IDS)
def served(context: Context) -> Iterator[Check]:
    """Call the proxy with the right token and with a wrong one, then ask the controller."""
    if context.plan.spec.services.serving is None:
        yield from skipped(_IDS, "the cluster serves no models")
        return
    head, found, reason = context.allocation.head.name, "", ""
    try:
        right, wrong = (serving.status(context.cluster, token) for token in (None, "0" * 32))
        found, wanted = f"{right}, {wrong}", (http.HTTPStatus.OK, http.HTTPStatus.UNAUTHORIZED)
        if (right, wrong) != wanted:
            reason = f"answers {right} to its token and {wrong} to a wrong one"
    except GpubedError as error:
        reason = error.message
    yield judged("serving.login", head, reason, found, "200 to its token, 401 to a wrong one")
    try:
        models = serving.state(context.cluster, context.head).models
    except GpubedError as error:
        yield judged("serving.ready", head, f"the controller says nothing: {error.headline}")
        return
    for name, model in models.items():
        for track in model.tracks:
            why = track.reason or track.waits or "they start: gpubed serve CLUSTER --status"
            reason = "" if track.ready >= track.replicas else f"{name}@{track.version}: {why}"
            limit = f"{track.replicas} of {name}@{track.version}"
            yield judged("serving.ready", head, reason, track.ready, limit, "replicas")
    if not models:
        yield from skipped(("serving.ready",), "no model is served yet", head)

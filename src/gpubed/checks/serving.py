"""Checks served models: every wanted replica is ready."""

from __future__ import annotations

from collections.abc import Iterator

from gpubed.access import serving
from gpubed.checks.context import Context, judged, skipped
from gpubed.checks.registry import Stage, at
from gpubed.core.errors import GpubedError
from gpubed.nodes.verification import Check

_ID = "serving.ready"


@at(Stage.SERVICES, _ID)
def served(context: Context) -> Iterator[Check]:
    """Ask the controller for its replicas."""
    if context.plan.spec.services.serving is None:
        yield from skipped((_ID,), "the cluster serves no models")
        return
    head = context.allocation.head.name
    try:
        models = serving.state(context.cluster, context.head).models
    except GpubedError as error:
        yield judged(_ID, head, f"the controller says nothing: {error.headline}")
        return
    for name, model in models.items():
        for track in model.tracks:
            why = track.reason or track.waits or "they start: gpubed serve CLUSTER --status"
            reason = "" if track.ready >= track.replicas else f"{name}@{track.version}: {why}"
            limit = f"{track.replicas} of {name}@{track.version}"
            yield judged(_ID, head, reason, track.ready, limit, "replicas")
    if not models:
        yield from skipped((_ID,), "no model is served yet", head)

"""Measures what calibrates predictions: one rank's rate, and an allreduce between two nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from gpubed.core.errors import GpubedError
from gpubed.jobs import execution
from gpubed.jobs.execution import Terms
from gpubed.jobs.runs.record import Choice, Request
from gpubed.nodes.allocation import Cluster
from gpubed.prediction import probed
from gpubed.prediction.probed import Alone, Probed, Way

LONGEST_S = 60.0
"""Seconds after which one rank's run is ended."""
_LINKS = {"seconds": "0.1", "largest_s": "1", "host_limit": "when-slow"}
_STEPS = {True: {"steps": "40", "warmup_steps": "10"}, False: {"steps": "6", "warmup_steps": "2"}}


def probe(
    cluster: Cluster,
    training: Mapping[str, str],
    tell: Callable[[str], None],
    *,
    links_only: bool = False,
) -> Probed:
    """Measure a cluster, and keep what was found beside what an earlier probe found of the rest.

    Args:
        cluster: The cluster with the nodes that may be used.
        training: Arguments of job imagenet: model, batch_size, image_size.
        tell: Hears what is measured next.
        links_only: Whether one rank's rate is left as it is known.

    Raises:
        GpubedError: A job failed, or one rank took longer than `LONGEST_S`.
    """
    allocation, network = cluster.allocation, cluster.allocation.experiment
    found = probed.read(cluster.paths, allocation.uuid)
    found = found or Probed(measured=datetime.now(UTC), uuid=allocation.uuid)
    if not links_only:
        tell(f"one rank trains {training['model']}")
        found = found.model_copy(update={"alone": _alone(cluster, training)})
    if len(allocation.with_ranks) > 1 and network and network.rate_bps:
        ways = {}
        declared = cluster.plan.spec.networks.experiment
        gpus = any(node.gpus for node in allocation.with_ranks)
        for transport in ("tcp", "rdma") if gpus and declared and declared.rdma else ("tcp",):
            tell(f"two nodes average by {transport}")
            asked = {**_LINKS, "transport": transport} if gpus else _LINKS
            ways[transport] = way(_run(cluster, "allreduce", asked, 2)["allreduce"])
        found = found.model_copy(update={"ways": ways, "link_bps": network.rate_bps})
    found = found.model_copy(update={"measured": datetime.now(UTC)})
    probed.write(cluster.paths, found)
    return found


def way(rows: Sequence[Mapping[str, Any]], ranks: int = 2) -> Way:
    """Fit t = 2(N-1) s + 2(N-1)/N x size / B to an allreduce of several sizes.

    Long messages tell B: a shaped link lets a burst pass at once. Short ones tell s.
    """
    times = sorted((row["bytes"], row["seconds"]) for row in rows)
    (size, took), (large, longest) = times[-2:] if len(times) > 1 else ((0, 0.0), times[0])
    per_byte = (longest - took) / (large - size) if longest > took else longest / large
    small, shortest = times[0]
    return Way(
        bus_bps=8 * 2 * (ranks - 1) / ranks / per_byte,
        step_s=max(0.0, shortest - small * per_byte) / (2 * (ranks - 1)),
    )


def _alone(cluster: Cluster, training: Mapping[str, str]) -> Alone:
    on_gpus = any(node.gpus for node in cluster.allocation.with_ranks)
    began = time.monotonic()
    too_long = f"one rank has not come to its end within {LONGEST_S:.0f} s"
    terms = Terms(unwanted=lambda: too_long * (time.monotonic() - began > LONGEST_S))
    metrics = _run(cluster, "imagenet", {**_STEPS[on_gpus], **training}, None, terms)
    return Alone(
        model=training["model"],
        image_size=int(training.get("image_size") or 224),
        batch=int(training["batch_size"]),
        device=str(metrics["device"]),
        images_per_s=metrics["images_per_s"],
    )


def _run(
    cluster: Cluster,
    job: str,
    settings: Mapping[str, str],
    nodes: int | None,
    terms: Terms = Terms(),  # noqa: B008  # frozen
) -> dict[str, Any]:
    choice = Choice(nodes=nodes) if nodes else Choice(ranks=1)
    request = Request(job=job, settings=dict(settings), choice=choice)
    result = execution.run(cluster, request, terms=replace(terms, by="probe", alone=True))
    if result.failures:
        hint = f"gpubed runs {cluster.name} show {result.run_id}"
        if "within" in result.failures[0]:
            hint = "--image-size 64, --batch 8 or a smaller --model"
        raise GpubedError(f"job {job} failed: {result.failures[0]}", hint)
    return result.metrics

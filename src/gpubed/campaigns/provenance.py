"""What a campaign was measured on, and with what: kept once, before its first point."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import gpubed
from gpubed import recipe as recipes
from gpubed import registry
from gpubed.allocation import Allocation
from gpubed.campaigns import records
from gpubed.campaigns.file import Source
from gpubed.campaigns.matrix import Point
from gpubed.hardware import facts
from gpubed.paths import ClusterPaths
from gpubed.plan import ClusterPlan
from gpubed.runs import origin
from gpubed.runs.record import sha256_of_folder


def header(
    cluster: ClusterPaths,
    plan: ClusterPlan,
    usable: Allocation,
    source: Source,
    points: Sequence[Point],
    command: str,
) -> dict[str, Any]:
    """Return the content of `campaign.json`.

    Args:
        usable: The nodes that are well; the others take no part.
        command: What was typed.
    """
    campaign, known = source.campaign, facts.of_cluster(cluster.facts, usable)
    commit = origin.commit(cluster.project.root)
    return {
        "schema": "gpubed/campaign/1",
        "name": source.name,
        "job": campaign.job,
        "digest": records.digest(source, points),
        "seed": campaign.seed,
        "repeat": campaign.repeat,
        "factors": {name: list(values) for name, values in campaign.factors.items()},
        "campaign": campaign.content(),
        "cluster": cluster.name,
        "uuid": usable.uuid,
        "backend": usable.backend,
        "recipe": plan.spec.recipe,
        "gpubed": gpubed.__version__,
        "git": commit and commit.model_dump(),
        "made_with": made_with(plan, usable, campaign.job),
        "nodes": [
            {
                "name": node.name,
                "hardware": known[node.name].words if node.name in known else None,
                "slots": node.slots,
                "gpus": node.gpus,
            }
            for node in usable.nodes
        ],
        "links": _links(cluster, usable),
        "simulated": any(found.simulated for found in known.values()),
        "command": command,
        "started": now(),
    }


def made_with(plan: ClusterPlan, allocation: Allocation, job: str) -> dict[str, str]:
    """Return what every point of a campaign must be made with alike, by what it is."""
    network = allocation.experiment
    return {
        "the job's files": sha256_of_folder(registry.job_folder(job)),
        "the recipe": recipes.load(plan.spec.recipe).lock_sha256(),
        "the experiment network": network.model_dump_json() if network else "",
        "gpubed": gpubed.__version__,
    }


def now() -> str:
    """Return the time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _links(cluster: ClusterPaths, usable: Allocation) -> list[dict[str, Any]]:
    """Return what the last verification measured between these nodes; none where there is none."""
    declared = usable.experiment.rate_bps if usable.experiment else None
    names = {node.name for node in usable.nodes}
    measured = {tuple(link.split(">")): rate for link, rate in origin.rates(cluster).items()}
    return [
        {"src": ends[0], "dst": ends[-1], "declared_bps": declared, "measured_bps": rate}
        for ends, rate in measured.items()
        if names.issuperset(ends)
    ]

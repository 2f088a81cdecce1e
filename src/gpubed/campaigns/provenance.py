"""Provenance of a campaign: its cluster and software, recorded before the first point."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import gpubed
from gpubed.campaigns import records
from gpubed.campaigns.file import Source, text
from gpubed.campaigns.matrix import Point
from gpubed.configuration import owners_variables
from gpubed.hardware import facts
from gpubed.jobs import images, jobfile
from gpubed.jobs.jobfile import Job
from gpubed.jobs.runs import origin
from gpubed.jobs.runs.record import sha256_of_folder
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import SSH
from gpubed.recipes import recipe as recipes

# Fields of cluster.yml that no figure depends on: names, durations, what is predicted, and node
# counts. Each node is recorded separately, and counts where a point has ranks on it.
_HARMLESS = dict.fromkeys(("version", "name", "owner", "lease", "may_reboot", "experiment"), True)
_OF_NODES = {"min", "on_failure"}
# Shards and their checksums are in these two (job prepare); images by class have neither.
_DESCRIBED = "cd %s 2>/dev/null && cat dataset.json SHA256SUMS 2>/dev/null"
IMAGE, DATASET = "image ", "dataset "
"""What the names begin with of what only nodes can tell."""


def header(
    cluster: Cluster,
    source: Source,
    points: Sequence[Point],
    command: str,
    made: Mapping[str, str],
) -> dict[str, Any]:
    """Return the content of `campaign.json` for a cluster of usable nodes."""
    campaign, granted = source.campaign, cluster.allocation
    known = facts.of_cluster(cluster.paths.facts, granted)
    hardware = {name: found.words for name, found in known.items()}
    commit = origin.commit(cluster.paths.project.root)
    declared = granted.experiment and granted.experiment.rate_bps
    links = ((link.split(">"), rate) for link, rate in origin.rates(cluster.paths).items())
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
        "uuid": granted.uuid,
        "backend": granted.backend,
        "one_host": granted.one_host,
        "recipe": cluster.plan.spec.recipe,
        "gpubed": gpubed.__version__,
        "git": commit and commit.model_dump(),
        "made_with": dict(made),
        "nodes": [
            {"name": n.name, "hardware": hardware.get(n.name), "slots": n.slots, "gpus": n.gpus}
            for n in granted.nodes
        ],
        "rate_bps": declared,
        "links": [
            {"src": ends[0], "dst": ends[-1], "declared_bps": declared, "measured_bps": rate}
            for ends, rate in links
            if {n.name for n in granted.nodes}.issuperset(ends)
        ],
        "simulated": any(found.simulated for found in known.values()),
        "command": command,
        "started": now(),
    }


def made_with(cluster: Cluster, job: str) -> dict[str, str]:
    """Return what must be the same for all points of a campaign, by name.

    Unknown facts, such as the driver of a node without one, are left out.
    """
    spec, network = cluster.plan.spec, cluster.allocation.experiment
    # On a testbed of jobs, `count` is the number of jobs whose mean a point is.
    of_nodes = _OF_NODES | {"count"} if cluster.allocation.nodes else _OF_NODES
    harmless: Any = {**_HARMLESS, "nodes": {"__all__": of_nodes}}
    names = [node.name for node in cluster.allocation.nodes]
    return {
        "the job's files": sha256_of_folder(jobfile.folder(job)),
        "the recipe": recipes.load(spec.recipe).lock_sha256(),
        "the experiment network": network.model_dump_json() if network else "",
        records.SPECIFICATION: spec.model_dump_json(exclude=harmless, exclude_defaults=True),
        "gpubed": gpubed.__version__,
        **owners_variables.checksums(cluster.paths.inventory, names),
        **_machines(cluster),
    }


def found_on_nodes(
    cluster: Cluster, source: Source, job: Job, containers: Iterable[str]
) -> dict[str, str]:
    """Return the part of `made_with` that only the nodes can tell: datasets and images."""
    if not cluster.allocation.nodes:
        return {}
    campaign, names, made = source.campaign, set[str](), dict[str, str]()
    for name, argument in job.arguments.items():
        if argument.dataset:
            fixed = campaign.settings.get(name, argument.default)
            values = campaign.factors.get(name, () if fixed is None else (fixed,))
            names |= {*map(text, values)}
    if names:
        folder = cluster.plan.spec.storage.datasets
        with SSH(cluster.allocation.head, cluster.paths) as head:
            for name in sorted(names):
                if said := head.run(_DESCRIBED, f"{folder}/{name}", check=False).stdout:
                    made[f"{DATASET}{name}"] = hashlib.sha256(said.encode()).hexdigest()
    for image in dict.fromkeys(containers):
        made[f"{IMAGE}{image}"] = images.require(cluster, image)
    return made


def _machines(cluster: Cluster) -> dict[str, str]:
    known = facts.of_cluster(cluster.paths.facts, cluster.allocation)
    made = {}
    for node in cluster.allocation.nodes:
        made[f"{node.name}'s id"] = node.id
        made[f"{node.name}'s slots"] = str(node.slots)
        made[f"{node.name}'s gpus"] = str(node.gpus)
        if found := known.get(node.name):
            made[f"{node.name}'s hardware"] = found.words
            if found.driver.loaded:
                made[f"{node.name}'s driver"] = found.driver.loaded
    return made


def now() -> str:
    """Return the time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")

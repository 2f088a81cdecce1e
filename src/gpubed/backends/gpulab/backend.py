"""GPULab as a testbed: it runs jobs and lends no nodes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from gpubed.backends.gpulab import login, offers, request
from gpubed.backends.gpulab.client import Client
from gpubed.backends.gpulab.config import Config
from gpubed.backends.gpulab.remote import RemoteJob
from gpubed.core import paths
from gpubed.core.errors import GpubedError
from gpubed.spec.clusterspec import ClusterSpec, Problem
from gpubed.spec.plan import plan as make_plan
from gpubed.spec.sections import MOST_GPUS
from gpubed.testbeds import made_on
from gpubed.testbeds.base import Existing, Finding, Identity, JobState, JobTestbed, Offer

# Pulumi's library is slow to import, and most verbs do not need it.
if TYPE_CHECKING:
    import pulumi

    from gpubed.nodes.allocation import Allocation
    from gpubed.spec.plan import ClusterPlan

_EXPIRES_SOON_D = 14
_FAIR_USE = 10
_CANCEL_S, _POLL_S = 60.0, 0.5
_CLOCK_S = 60.0
_SHORTEST_S, _LONGEST_S = 60, 14 * 86400
_APART = (
    "each node is a job of its own here, in one container on one worker, and no cluster of "
    "GPULab lets jobs reach each other, so there is no Horovod world over {count} jobs"
)


@dataclass(frozen=True)
class Running(Existing):
    """A job that has not ended; `cluster` says whose certificate may cancel it."""

    cluster: str = ""


class GpulabBackend(JobTestbed):
    """Checks, lists and cancels; `launchers/gpulab.py` runs jobs."""

    name = "gpulab"
    launcher = "gpulab"
    the_way_back = "put `backend.certificate` of cluster.yml back"

    def check(self, spec: ClusterSpec) -> list[Problem]:
        """Return what jobs in containers cannot do."""
        return [*_nodes(spec), *_rest(spec)]

    def doctor(self, spec: ClusterSpec | None) -> list[Finding]:
        """Look at certificate, service, project and whether the job can ever run."""
        if spec is None:
            return []
        options = request.config(spec)
        try:
            client = Client(options)
        except GpubedError as error:
            return [Finding("gpulab.certificate", False, error.message, error.hint)]
        return [_certificate(client), *_service(client, spec)]

    def component(
        self, plan: ClusterPlan, uuid: pulumi.Output[str], public_key: pulumi.Output[str]
    ) -> pulumi.Output[dict[str, Any]]:
        """Declare an allocation without nodes."""
        from gpubed.backends.gpulab.component import Cluster

        return Cluster(plan, uuid).allocation

    def describe(self, allocation: Allocation) -> dict[str, str]:
        """Return nothing: there are no nodes."""
        return {}

    def identity(self, cluster: str) -> Identity:
        """Return whose jobs are seen: those of others are hidden."""
        user = login.read(_config(cluster)).urn
        return Identity(user, f"GPULab as {user.rpartition('+')[2]}")

    def existing(self, cluster: str) -> list[Existing]:
        """Return the cluster's jobs that have not ended."""
        found: list[Existing] = []
        for job in _client(cluster).jobs():
            labels = dict(word.split("=", 1) for word in _labels(job))
            if labels.get("gpubed.name") == cluster and not job.ended:
                owner = labels.get("gpubed.cluster", "")
                found.append(
                    Running("job", job.name, job.uuid, owner, transient=True, cluster=cluster)
                )
        return found

    def remove(self, thing: Existing) -> None:
        """Cancel a job that `existing` found, and wait until it has ended."""
        if not isinstance(thing, Running):
            return
        client, until = _client(thing.cluster), time.monotonic() + _CANCEL_S
        client.cancel(thing.id)
        while not client.is_over(thing.id) and time.monotonic() < until:
            time.sleep(_POLL_S)

    def links(self, spec: ClusterSpec) -> dict[str, str]:
        """Return where notebooks are: in GPULab's own JupyterHub, behind its own login."""
        return {"jupyterhub": request.config(spec).jupyterhub}

    def jobs(self, spec: ClusterSpec, uuid: str) -> list[JobState]:
        """Return the jobs of the cluster that the service still lists."""
        wanted = request.label(spec.name, uuid)
        return [
            JobState(job.uuid, job.name, job.status, job.explanation)
            for job in Client(request.config(spec)).jobs()
            if (job.description or "").startswith(wanted)
        ]

    def resources(self, spec: ClusterSpec) -> list[Offer]:
        """Return the service's clusters."""
        client = Client(request.config(spec))
        return offers.offers(client.clusters(), client.workers())

    def fits(self, plan: ClusterPlan) -> list[str]:
        """Return why the jobs can never run, or would have to wait now."""
        options = request.config(plan.spec)
        client = Client(options)
        clusters, workers = client.clusters(), client.workers()
        found: dict[str, None] = {}
        for node in plan.nodes:
            wanted = request.resources(plan, node)
            found[offers.never(wanted, options.storage, clusters, workers)] = None
        if any(found):
            return list(filter(None, found))
        jobs = min(len(plan.nodes), options.parallel)
        waits = offers.now(request.resources(plan, plan.nodes[0]), jobs, clusters, workers)
        return [waits] if waits else []


def _nodes(spec: ClusterSpec) -> list[Problem]:
    found, options = [], request.config(spec)
    if options.jobs == "one" and spec.count > 1:
        gpus = sum(group.count * max(1, group.gpus) for group in spec.nodes)
        found.append(
            Problem(
                ("nodes",),
                _APART.format(count=spec.count),
                (f"one node with gpus: {gpus} for one world; " if gpus <= MOST_GPUS else "")
                + f"backend.jobs: trials for {spec.count} worlds, one per job",
            )
        )
    for position, group in enumerate(spec.nodes):
        if group.gpus != spec.nodes[0].gpus:
            found.append(
                Problem(
                    ("nodes", position, "gpus"),
                    "trials of different sizes have no mean",
                    f"{spec.nodes[0].gpus}, as in the first group",
                )
            )
        try:
            request.amounts(group.machine)
        except ValueError as error:
            found.append(
                Problem(("nodes", position), str(error), "machine: {cpus: 4, memory: 16 GB}")
            )
    return found


def _rest(spec: ClusterSpec) -> list[Problem]:
    found = []
    if spec.networks.experiment:
        found.append(
            Problem(
                ("networks", "experiment"),
                "there is no network between GPULab's jobs",
                "leave networks out",
            )
        )
    for service in ("docker", "monitoring", "slurm"):
        if getattr(spec.services, service) is not None:
            found.append(
                Problem(("services", service), "GPULab has no nodes to run it on", "leave it out")
            )
    if not _SHORTEST_S <= spec.lease.duration <= _LONGEST_S:
        found.append(
            Problem(("lease", "duration"), "GPULab ends every job after two weeks", "1 min to 14 d")
        )
    return found


def _certificate(client: Client) -> Finding:
    left = client.login.expires - datetime.now(UTC)
    soon = "; fetch a new one soon" if left.days < _EXPIRES_SOON_D else ""
    return Finding(
        "gpulab.certificate",
        True,
        f"{client.login.urn}, until {client.login.expires:%Y-%m-%d} ({left.days} days){soon}",
    )


def _service(client: Client, spec: ClusterSpec) -> list[Finding]:
    options = request.config(spec)
    try:
        version = client.version()
        running = sum(not job.ended for job in client.jobs())
        clusters, workers = client.clusters(), client.workers()
    except GpubedError as error:
        return [Finding("gpulab.service", False, error.message, error.hint)]
    plan = make_plan(spec)
    reasons = {
        offers.never(request.resources(plan, node), options.storage, clusters, workers)
        for node in plan.nodes
    } - {""}
    return [
        Finding("gpulab.service", True, f"{options.master} (client {version})"),
        Finding(
            "gpulab.project", True, f"{client.login.project_urn(options.project)}, as submitted"
        ),
        _clock(client.clock_error_s),
        Finding(
            "gpulab.quota",
            True,
            f"{running} job(s) of yours have not ended; fair use allows {_FAIR_USE} at a time",
        ),
        Finding(
            "gpulab.resources",
            not reasons,
            "; ".join(sorted(reasons)) or "a worker that could run the jobs exists",
            f"gpubed resources {spec.name}",
        ),
    ]


def _clock(error_s: float | None) -> Finding:
    if error_s is None:
        return Finding("gpulab.clock", True, "the service does not tell its time")
    said = f"{abs(error_s):.0f} s {'ahead of' if error_s > 0 else 'behind'} the service's"
    return Finding("gpulab.clock", abs(error_s) <= _CLOCK_S, said, "timedatectl set-ntp true")


def _client(cluster: str) -> Client:
    return Client(_config(cluster))


def _config(cluster: str) -> Config:
    return request.config(made_on.specification(paths.Project.find().cluster(cluster), "gpulab"))


def _labels(job: RemoteJob) -> list[str]:
    return [word for word in (job.description or "").split() if word.startswith("gpubed.")]


def create() -> GpulabBackend:
    """Make the backend; the registry calls this."""
    return GpulabBackend()

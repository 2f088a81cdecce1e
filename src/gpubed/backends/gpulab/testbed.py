"""The operations of a cluster on GPULab: checks, offers, and the cluster's jobs."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from functools import cached_property
from shlex import quote
from typing import TYPE_CHECKING

from gpubed.backends.gpulab import launcher, offers, request
from gpubed.backends.gpulab.client import PAGE, Client, Login, NoSuchJob, RemoteJob
from gpubed.backends.gpulab.config import Config
from gpubed.core.errors import GpubedError
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.spec.plan import plan as make_plan
from gpubed.testbeds.base import Existing, Finding, Identity, JobState, JobTestbed, Offer

if TYPE_CHECKING:
    from gpubed.spec.plan import ClusterPlan

_EXPIRES_SOON_D = 14
_FAIR_USE = 10
_CANCEL_S, _POLL_S = 60.0, 0.5


class GpulabTestbed(JobTestbed):
    """A user's view of a GPULab service."""

    @cached_property
    def _config(self) -> Config:
        return Config.of(self.reach.specification.backend)

    def doctor(self, spec: ClusterSpec) -> list[Finding]:
        """Check certificate, service, project, and whether a worker can run the jobs."""
        options = Config.of(spec.backend)
        try:
            client = Client(options)
        except GpubedError as error:
            return [Finding("gpulab.certificate", False, error.message, error.hint)]
        return _service(client, spec)

    def identity(self) -> Identity:
        """Return the service and user, who sees only own jobs."""
        master, user = self._config.master, Login.of(self._config).urn
        called = f"GPULab at {master} as {user.rpartition('+')[2]}"
        canonical_id = self.backend.canonical_id
        return Identity(canonical_id(f"{master} {user}"), called, formerly=(canonical_id(user),))

    def existing(self) -> list[Existing]:
        """Return the cluster's jobs that have not ended."""
        found: list[Existing] = []
        for job in self._jobs():
            words = (job.description or "").split()
            labels = dict(word.split("=", 1) for word in words if word.startswith("gpubed."))
            if labels.get("gpubed.name") == self.paths.name and not job.ended:
                owner = labels.get("gpubed.cluster", "")
                found.append(Existing("job", job.name, job.uuid, owner, transient=True))
        return found

    def remove(self, thing: Existing) -> None:
        """Cancel a job that `existing` found, and wait until it has ended."""
        client, until = Client(self._config), time.monotonic() + _CANCEL_S
        client.cancel(thing.id)
        while not client.is_over(thing.id) and time.monotonic() < until:
            time.sleep(_POLL_S)

    def jobs(self, uuid: str) -> list[JobState]:
        """Return the jobs of the cluster that the service still lists."""
        wanted = request.label(self.paths.name, uuid)
        return [
            JobState(job.uuid, job.name, job.status, job.explanation)
            for job in self._jobs()
            if (job.description or "").startswith(wanted)
        ]

    def _jobs(self) -> list[RemoteJob]:
        """Return the user's jobs: the listed ones, and unlisted ones in records of runs."""
        client = Client(self._config)
        found = client.jobs()
        is_page, names = len(found) >= PAGE, {job.name for job in found}
        for path, row in launcher.left(self.paths.runs):
            if row.name in names:
                continue
            if row.id:
                with suppress(NoSuchJob):
                    found.append(client.job(row.id))
            elif is_page:
                raise GpubedError(
                    f"it is unknown whether job {row.name} exists: GPULab never told its id, "
                    f"and may list only {len(found)} of your jobs",
                    f"cancel it on GPULab's own page if it is there, then: rm {quote(str(path))}",
                )
        return found

    def resources(self, spec: ClusterSpec) -> list[Offer]:
        """Return the service's clusters."""
        client = Client(Config.of(spec.backend))
        return offers.offers(client.clusters(), client.workers())

    def fits(self, plan: ClusterPlan) -> list[Finding]:
        """Return why the jobs can never run, or would wait now."""
        options = Config.of(plan.spec.backend)
        client = Client(options)
        clusters, workers = client.clusters(), client.workers()
        fix = f"gpubed resources {plan.cluster} lists what there is, and what is free"
        if reasons := offers.impossible(plan, clusters, workers):
            return [Finding("gpulab.supply", False, why, fix) for why in reasons]
        jobs = min(len(plan.nodes), options.parallel)
        waits = offers.now(request.resources(plan, plan.nodes[0]), jobs, clusters, workers)
        wait = f"gpubed up {plan.cluster} all the same: jobs wait their turn; or {fix}"
        return [Finding("gpulab.supply", False, waits, wait)] if waits else []


def _service(client: Client, spec: ClusterSpec) -> list[Finding]:
    options, until = Config.of(spec.backend), client.login.expires
    days = (until - datetime.now(UTC)).days
    soon = "; fetch a new one soon" if days < _EXPIRES_SOON_D else ""
    valid = f"{client.login.urn}, until {until:%Y-%m-%d} ({days} days){soon}"
    certificate = Finding("gpulab.certificate", True, valid)
    try:
        version = client.version()
        running = sum(not job.ended for job in client.jobs())
        clusters, workers = client.clusters(), client.workers()
    except GpubedError as error:
        return [certificate, Finding("gpulab.service", False, error.message, error.hint)]
    reasons = offers.impossible(make_plan(spec), clusters, workers)
    project = f"{client.login.project_urn(options.project)}, as submitted"
    quota = f"{running} job(s) of yours have not ended; fair use allows {_FAIR_USE} at a time"
    found = "; ".join(sorted(reasons)) or "a worker that could run the jobs exists"
    return [
        certificate,
        Finding("gpulab.service", True, f"{options.master} (client {version})"),
        Finding("gpulab.project", True, project),
        Finding("gpulab.quota", True, quota),
        Finding("gpulab.resources", not reasons, found, f"gpubed resources {spec.name}"),
    ]

"""Served models: what is asked of the head's controller, and what it says."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from gpubed.access import https
from gpubed.core import reading, secret
from gpubed.core.errors import GpubedError, UsageError, of_cluster
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import SSH

_DEPLOY_S = 600.0


class Track(BaseModel):
    """One version of a served model, and figures of its replicas."""

    version: str
    share: int
    source: str
    target: str
    replicas: int
    ready: int
    p50_s: float | None
    p99_s: float | None
    per_s: float
    backlog: int
    waits: str
    reason: str
    failed: bool


class Model(BaseModel):
    """A served model; `former` are replicas of versions that the newest has not replaced yet."""

    revision: int
    complete: bool
    tracks: tuple[Track, ...]
    former: tuple[str, ...]


class State(BaseModel):
    """What the controller last saw."""

    time: float
    models: dict[str, Model]


class _Reply(BaseModel):
    revision: int = 0
    error: str = ""
    hint: str = ""


def require(cluster: Cluster) -> int:
    """Return the port; raise `UsageError` if the cluster serves no models."""
    if cluster.plan.spec.services.serving is None:
        raise UsageError(
            f"cluster {cluster.name} serves no models",
            f"set 'serving: {{}}' under services in cluster.yml, then: gpubed up {cluster.name}",
        )
    cluster.allocation.require_nodes()
    return cluster.plan.spec.services.serving.port


def ask(cluster: Cluster, head: SSH, request: dict[str, Any]) -> int:
    """Ask for another state of a model; return its number. Raises `GpubedError` if refused."""
    python = f"{cluster.plan.spec.storage.shared.path}/env/current/bin/python"
    deploy = "cd /usr/local/lib/gpubed && %s -m gpubed_serving.deploy"
    said = head.run(deploy, python, stdin=json.dumps(request), timeout=_DEPLOY_S).stdout
    reply = reading.reply(said.splitlines()[-1] if said else "", "the head").json(_Reply)
    if reply.error:
        raise GpubedError(reply.error, of_cluster(reply.hint, cluster.name))
    return reply.revision


def state(cluster: Cluster, head: SSH) -> State:
    """Return what the controller last saw."""
    file = f"{cluster.plan.spec.storage.shared.path}/serving/state/state.json"
    said = head.run("sudo -u gpubed-serving cat %s", file).stdout
    return reading.reply(said, file).json(State)


def status(cluster: Cluster, token: str = "", page: str = "/v2/health/ready") -> int:
    """Request a page with the right token or another; return the HTTP status code."""
    login = f"Bearer {token or secret.text(cluster.paths.secrets / 'serving_token')}"
    return https.request(cluster, "serving", require(cluster), page, login)[0]

"""Logs runs to the cluster's MLflow (`services.tracking`), and asks whether it answers.

A run does not depend on it: without an answer, a note says why nothing is logged.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import re
import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import AliasChoices, AliasPath, BaseModel, Field

from gpubed.access import tunnel
from gpubed.core import progress, reading, secret
from gpubed.core.errors import GpubedError
from gpubed.nodes.allocation import Cluster

ACCOUNT = "gpubed"
_API = "/api/2.0/mlflow"
_TIMEOUT_S = 10.0
_LONGEST = 5000  # characters of a parameter or tag
_PARAMS, _METRICS = 100, 1000  # in one request
_STATES = {"ok": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class _Experiment(BaseModel):
    id: str = Field(
        validation_alias=AliasChoices(AliasPath("experiment", "experiment_id"), "experiment_id")
    )


class _Run(BaseModel):
    id: str = Field(validation_alias=AliasPath("run", "info", "run_id"))
    artifacts: str = Field(validation_alias=AliasPath("run", "info", "artifact_uri"))


def password(cluster: Cluster) -> str:
    """Return the password of gpubed's own account; role tracking derives it in the same way."""
    key = secret.text(cluster.paths.secrets / "tracking_key")
    return hashlib.sha512(f"{key}:{ACCOUNT}".encode()).hexdigest()[:48]


def port(cluster: Cluster) -> int:
    """Return the port of MLflow; 0 if the specification has none."""
    service = cluster.plan.spec.services.tracking
    return service.port if service else 0


def certificate(cluster: Cluster) -> Path:
    """Return the certificate of the authority that signed MLflow's."""
    return cluster.paths.state / "tracking.crt"


def status(cluster: Cluster, given: str | None = None) -> int:
    """Ask MLflow with a password, by default the right one; return the HTTP status code.

    Raises:
        GpubedError: It does not answer, or shows another certificate.
    """
    return _ask(cluster, "GET", f"{_API}/experiments/get?experiment_id=0", given=given)[0]


def begin(
    cluster: Cluster, experiment: str, tags: Mapping[str, str], params: Mapping[str, Any]
) -> str:
    """Begin a run of MLflow, and return its id; empty without MLflow.

    Args:
        tags: `mlflow.runName` among them is its name.
    """
    if not port(cluster):
        return ""
    try:
        by_name = f"{_API}/experiments/get-by-name?experiment_name={quote(experiment, safe='')}"
        code, reply = _ask(cluster, "GET", by_name)
        if code == http.HTTPStatus.NOT_FOUND:
            reply = _call(cluster, "experiments/create", name=experiment)
        else:
            reply = _require(code, reply)
        found = reading.reply(reply, "MLflow's experiment").json(_Experiment).id
        listed = [{"key": key, "value": value[:_LONGEST]} for key, value in tags.items()]
        now = _now()
        reply = _call(cluster, "runs/create", experiment_id=found, start_time=now, tags=listed)
        run = reading.reply(reply, "MLflow's run").json(_Run).id
        rows = [{"key": _key(k), "value": str(value)[:_LONGEST]} for k, value in params.items()]
        for at in range(0, len(rows), _PARAMS):
            _call(cluster, "runs/log-batch", run_id=run, params=rows[at : at + _PARAMS])
    except GpubedError as error:
        _warn(cluster, error)
        return ""
    return run


def end(
    cluster: Cluster,
    run: str,
    state: str,
    rows: Iterable[tuple[str, float, float]] = (),
    files: Iterable[Path] = (),
    why: str = "",
) -> None:
    """End a run of MLflow.

    Args:
        run: Its id; empty if it was not begun.
        state: `ok`, `failed` or `interrupted`.
        rows: Name, step and value of its metrics.
        files: Its artifacts.
        why: The reason of a failure.
    """
    if not run:
        return
    at = _now()
    metrics = [
        {"key": _key(name), "step": int(step), "value": value, "timestamp": at}
        for name, step, value in rows
    ]
    tags = [{"key": "gpubed.failure", "value": why[:_LONGEST]}] if why else []
    try:
        for first in range(0, len(metrics), _METRICS):
            _call(cluster, "runs/log-batch", run_id=run, metrics=metrics[first : first + _METRICS])
        for file in files:
            _artifact(cluster, run, file)
        _call(cluster, "runs/log-batch", run_id=run, tags=tags)
        _call(cluster, "runs/update", run_id=run, status=_STATES[state], end_time=at)
    except (GpubedError, OSError) as error:
        _warn(cluster, error)


@contextmanager
def interrupted(cluster: Cluster, run: str) -> Iterator[None]:
    """End a run of MLflow as interrupted if the body raises."""
    try:
        yield
    except BaseException:
        end(cluster, run, "interrupted")
        raise


def _artifact(cluster: Cluster, run: str, file: Path) -> None:
    reply = _require(*_ask(cluster, "GET", f"{_API}/runs/get?run_id={run}"))
    place = reading.reply(reply, "MLflow's run").json(_Run).artifacts.partition(":/")[2]
    path = f"/api/2.0/mlflow-artifacts/artifacts/{quote(place)}/{quote(file.name)}"
    _require(*_ask(cluster, "PUT", path, file.read_bytes()))


def _call(cluster: Cluster, what: str, **document: Any) -> str:
    body = json.dumps(document).encode()
    return _require(*_ask(cluster, "POST", f"{_API}/{what}", body))


def _require(code: int, reply: str) -> str:
    if code != http.HTTPStatus.OK:
        raise GpubedError(f"MLflow answers {code}: {reading.tail(reply, 1)}")
    return reply


def _ask(
    cluster: Cluster, method: str, path: str, body: bytes = b"", given: str | None = None
) -> tuple[int, str]:
    login = base64.b64encode(f"{ACCOUNT}:{given or password(cluster)}".encode()).decode()
    headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
    try:
        context = ssl.create_default_context(cafile=str(certificate(cluster)))
        with tunnel.to_head(cluster, port(cluster)) as (host, local):
            connection = http.client.HTTPSConnection(
                host, local, timeout=_TIMEOUT_S, context=context
            )
            connection.request(method, path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(2**20).decode(errors="replace")
    except (OSError, http.client.HTTPException) as error:
        fix = f"gpubed configure {cluster.name} --tags tracking"
        raise GpubedError(f"MLflow does not answer: {error}", fix) from error


def _warn(cluster: Cluster, error: Exception) -> None:
    fix = f"gpubed configure {cluster.name} --tags tracking"
    progress.emit("note", message=f"the run is not in MLflow: {error}; repair: {fix}")


def _key(name: str) -> str:
    """Replace what MLflow does not take in names."""
    return re.sub(r"[^A-Za-z0-9_./ -]", "_", name)


def _now() -> int:
    return int(time.time() * 1000)

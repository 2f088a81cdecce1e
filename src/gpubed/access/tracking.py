"""Logs runs to the cluster's MLflow (`services.tracking`), and asks whether it answers.

A run does not depend on it: without an answer, a note says why nothing is logged.
"""

from __future__ import annotations

import base64
import hashlib
import http
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import AliasChoices, AliasPath, BaseModel, Field

from gpubed.access import https
from gpubed.core import progress, reading, secret
from gpubed.core.errors import GpubedError
from gpubed.nodes.allocation import Cluster

ACCOUNT = "gpubed"
_API = "/api/2.0/mlflow"
_METRICS = 1000  # in one request
_STATES = {"ok": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class _Experiment(BaseModel):
    id: str = Field(
        validation_alias=AliasChoices(AliasPath("experiment", "experiment_id"), "experiment_id")
    )


class _Run(BaseModel):
    id: str = Field(validation_alias=AliasPath("run", "info", "run_id"))
    artifacts: str = Field(validation_alias=AliasPath("run", "info", "artifact_uri"))


def port(cluster: Cluster) -> int:
    """Return the port of MLflow; 0 if the specification has none."""
    service = cluster.plan.spec.services.tracking
    return service.port if service else 0


def status(cluster: Cluster, password: str = "") -> int:
    """Ask MLflow with a password, by default the right one; return the HTTP status code.

    Raises:
        GpubedError: It does not answer, or shows another certificate.
    """
    return _ask(cluster, "GET", f"{_API}/experiments/get?experiment_id=0", b"", password)[0]


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
        if code != http.HTTPStatus.OK:
            reply = _post(cluster, "experiments/create", name=experiment)
        found = reading.reply(reply, "MLflow's experiment").json(_Experiment).id
        listed = [{"key": key, "value": value} for key, value in tags.items()]
        reply = _post(cluster, "runs/create", experiment_id=found, start_time=_now(), tags=listed)
        run = reading.reply(reply, "MLflow's run").json(_Run).id
        rows = [{"key": _key(name), "value": str(value)} for name, value in params.items()]
        _post(cluster, "runs/log-batch", run_id=run, params=rows)
    except GpubedError as error:
        _warn(error)
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
    try:
        for first in range(0, len(metrics), _METRICS):
            _post(cluster, "runs/log-batch", run_id=run, metrics=metrics[first : first + _METRICS])
        for file in files:
            _artifact(cluster, run, file)
        if why:
            _post(cluster, "runs/set-tag", run_id=run, key="gpubed.failure", value=why)
        _post(cluster, "runs/update", run_id=run, status=_STATES[state], end_time=at)
    except GpubedError as error:
        _warn(error)


@contextmanager
def interrupted(cluster: Cluster, run: str) -> Iterator[None]:
    """End a run of MLflow as interrupted if the body raises."""
    try:
        yield
    except BaseException:
        end(cluster, run, "interrupted")
        raise


def _artifact(cluster: Cluster, run: str, file: Path) -> None:
    reply = _call(cluster, "GET", f"{_API}/runs/get?run_id={run}")
    place = reading.reply(reply, "MLflow's run").json(_Run).artifacts.partition(":/")[2]
    page = f"/api/2.0/mlflow-artifacts/artifacts/{quote(place)}/{quote(file.name)}"
    _call(cluster, "PUT", page, file.read_bytes())


def _post(cluster: Cluster, what: str, **document: Any) -> str:
    return _call(cluster, "POST", f"{_API}/{what}", json.dumps(document).encode())


def _call(cluster: Cluster, method: str, page: str, body: bytes = b"") -> str:
    code, reply = _ask(cluster, method, page, body)
    if code != http.HTTPStatus.OK:
        fix = f"gpubed configure {cluster.name} --tags tracking"
        raise GpubedError(f"MLflow answers {code}: {reading.tail(reply, 1)}", fix)
    return reply


def _ask(
    cluster: Cluster, method: str, page: str, body: bytes = b"", password: str = ""
) -> tuple[int, str]:
    if not password:  # as role tracking derives it
        key = secret.text(cluster.paths.secrets / "tracking_key")
        password = hashlib.sha512(f"{key}:{ACCOUNT}".encode()).hexdigest()[:48]
    login = f"Basic {base64.b64encode(f'{ACCOUNT}:{password}'.encode()).decode()}"
    service, at = "tracking", port(cluster)
    return https.request(cluster, service, at, page, login, method=method, body=body)


def _warn(error: GpubedError) -> None:
    progress.note(f"the run is not in MLflow: {error}")


def _key(name: str) -> str:
    """Replace what MLflow does not take in names."""
    return re.sub(r"[^A-Za-z0-9_./ -]", "_", name)


def _now() -> int:
    return int(time.time() * 1000)

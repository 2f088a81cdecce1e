"""Checks monitoring: Prometheus reads every node, all alert rules work, and the page is served."""

from __future__ import annotations

import http
import time
from collections.abc import Iterator
from typing import Any

from pydantic import AliasPath, BaseModel, Field

from gpubed.access import services
from gpubed.checks.context import Context, judged, skipped
from gpubed.checks.registry import Stage, at
from gpubed.core import reading
from gpubed.core.errors import GpubedError
from gpubed.core.paths import assets
from gpubed.nodes import answers
from gpubed.nodes.verification import Check

_IDS = ("monitoring.target", "monitoring.rules", "monitoring.page")
_RULES = "roles/monitoring/files/rules.yml"
# A new target is unknown until its first scrape.
_PATIENCE_S, _PAUSE_S = 45.0, 3.0
_QUERY = "curl --silent --fail --noproxy '*' --max-time 10 http://127.0.0.1:%s/api/v1/%s"
_OK = http.HTTPStatus.OK


class _Target(BaseModel):
    node: str = Field(validation_alias=AliasPath("labels", "node"))
    job: str = Field(validation_alias=AliasPath("labels", "job"))
    health: str
    last_error: str = Field(default="", alias="lastError")


class _Rule(BaseModel):
    name: str
    health: str
    last_error: str = Field(default="", alias="lastError")


class _Group(BaseModel):
    rules: tuple[_Rule, ...]


class _Answer(BaseModel):
    """Prometheus' data about its targets, or about its rules."""

    targets: tuple[_Target, ...] = Field((), validation_alias=AliasPath("data", "activeTargets"))
    groups: tuple[_Group, ...] = Field((), validation_alias=AliasPath("data", "groups"))


@at(Stage.SERVICES, *_IDS)
def monitoring(context: Context) -> Iterator[Check]:
    """Ask Prometheus for its targets and rules, and JupyterLab for the status page."""
    if context.plan.spec.services.monitoring is None:
        yield from skipped(_IDS, "the cluster is not monitored")
        return
    yield from _targets(context)
    yield _rules(context)
    yield _page(context)


def _repaired(context: Context, reason: str) -> str:
    repair = f"gpubed configure {context.cluster.name} --tags monitoring"
    return f"{reason}; repair: {repair}" if reason else ""


def _ask(context: Context, what: str) -> _Answer:
    wanted = context.plan.spec.services.monitoring
    answer = context.head.run(_QUERY, wanted and wanted.port, what, check=False)
    if answer.exit_code:
        return _Answer()
    return answers.of(context.head, f"api/v1/{what}", answer).json(_Answer)


def _targets(context: Context) -> Iterator[Check]:
    found = _settled(context)
    for node in context.allocation.nodes:
        broken = _repaired(context, _broken(found, node.name))
        up = sum(target.health == "up" for target in found.get(node.name, ()))
        limit = "every exporter of the node answers"
        yield judged("monitoring.target", node.name, broken, up, limit, "targets")


def _settled(context: Context) -> dict[str, list[_Target]]:
    names = {node.name for node in context.allocation.nodes}
    end = time.monotonic() + _PATIENCE_S
    while True:
        found: dict[str, list[_Target]] = {}
        for target in _ask(context, "targets?state=active").targets:
            found.setdefault(target.node, []).append(target)
        unknown = any(t.health == "unknown" for targets in found.values() for t in targets)
        if (set(found) >= names and not unknown) or time.monotonic() > end:
            return found
        time.sleep(_PAUSE_S)


def _broken(found: dict[str, list[_Target]], node: str) -> str:
    if not found:
        return "Prometheus on the head does not answer"
    if not any(target.job == "node" for target in found.get(node, ())):
        return "Prometheus does not ask this node"
    return "; ".join(
        f"exporter {t.job} does not answer ({t.last_error or t.health})"
        for t in found[node]
        if t.health != "up"
    )


def _rules(context: Context) -> Check:
    document = reading.file(assets() / _RULES).yaml(dict[str, Any])
    wanted = sum(len(group["rules"]) for group in document["groups"])
    loaded = [rule for group in _ask(context, "rules?type=alert").groups for rule in group.rules]
    sick = {rule.name: rule.last_error or rule.health for rule in loaded if rule.health == "err"}
    reason = "; ".join(f"rule {name} cannot be judged: {why}" for name, why in sick.items())
    if len(loaded) != wanted:
        reason = f"Prometheus judges {len(loaded)} rules instead of {wanted}"
    reason, limit = _repaired(context, reason), f"{wanted}, each without an error"
    head = context.allocation.head.name
    return judged("monitoring.rules", head, reason, len(loaded), limit, "rules")


def _page(context: Context) -> Check:
    head = context.allocation.head.name
    if context.plan.spec.services.jupyterlab is None:
        why = "the page is reached through JupyterLab, and the cluster has none"
        return Check(id="monitoring.page", node=head, result="skip", reason=why)
    try:
        status = services.page_status(context.cluster)
        reason = "" if status == _OK else f"the status page answers {status}"
    except GpubedError as error:
        status, reason = None, error.message
    return judged("monitoring.page", head, _repaired(context, reason), status, str(int(_OK)))

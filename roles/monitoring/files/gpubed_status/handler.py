"""Answers a browser with the page."""

from __future__ import annotations

import asyncio
import http
import json
import secrets
import time
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import JupyterHandler
from tornado import web
from tornado.httpclient import AsyncHTTPClient

from gpubed_status import figures, page, work

_SETTINGS = json.loads(Path(__file__).with_name("settings.json").read_text(encoding="utf-8"))
_TIMEOUT_S = 10
_HISTORY_S, _STEP_S = 1800, 30


class StatusHandler(JupyterHandler):
    """Serves the page, which is rendered for each request."""

    auth_resource = "contents"

    @cached_property
    def nonce(self) -> str:
        """The nonce of this answer's script and style."""
        return secrets.token_urlsafe(16)

    @property
    def content_security_policy(self) -> str:
        """The policy: only the page's own script and style, and nothing from other hosts."""
        return (
            f"default-src 'none'; script-src 'nonce-{self.nonce}'; "
            f"style-src 'nonce-{self.nonce}'; connect-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
        )

    @web.authenticated
    @authorized
    async def get(self) -> None:
        """Render the page with the present state of the cluster."""
        now, problem, cluster = time.time(), "", None
        try:
            cluster = figures.view(*await _figures(now), _SETTINGS["nodes"], now)
        except Exception as error:
            self.log.warning("the status page has no figures: %s", error)
            problem = str(error) or type(error).__name__
            self.set_status(http.HTTPStatus.SERVICE_UNAVAILABLE)
        queue = await asyncio.to_thread(work.queue)
        queued = {job["name"] for job in queue or ()}
        jobs = await asyncio.to_thread(work.runs, map(Path, _SETTINGS["runs"]), now, queued)
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Cache-Control", "no-store")
        self.set_header("Referrer-Policy", "no-referrer")
        self.finish(
            page.render(
                name=_SETTINGS["cluster"],
                now=now,
                nonce=self.nonce,
                problem=problem,
                cluster=cluster,
                jobs=jobs,
                queue=queue,
            )
        )


async def _figures(now: float) -> tuple[figures.Answers, figures.Answers, list[dict[str, Any]]]:
    """Query Prometheus for figures, their history and alerts, all at the same time."""
    span = {"start": now - _HISTORY_S, "end": now, "step": _STEP_S}
    current = [_ask("query", query=text, time=now) for text in figures.QUERIES.values()]
    history = [_ask("query_range", query=text, **span) for text in figures.HISTORIES.values()]
    alerts, *answers = await asyncio.gather(_ask("alerts"), *current, *history)
    results = [answer["result"] for answer in answers]
    split = len(current)
    return (
        dict(zip(figures.QUERIES, results[:split], strict=True)),
        dict(zip(figures.HISTORIES, results[split:], strict=True)),
        alerts["alerts"],
    )


async def _ask(what: str, **arguments: object) -> Any:
    url = f"{_SETTINGS['prometheus']}/api/v1/{what}?{urlencode(arguments)}"
    answer = await AsyncHTTPClient().fetch(url, request_timeout=_TIMEOUT_S)
    return json.loads(answer.body)["data"]

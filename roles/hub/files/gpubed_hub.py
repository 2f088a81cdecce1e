"""What JupyterHub has from gpubed: HAProxy as its proxy, Slurm jobs as servers, and their form."""

from __future__ import annotations

import asyncio
import html
import math
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from batchspawner import SlurmSpawner
from batchspawner.api import BatchSpawnerAPIHandler
from jupyterhub.proxy import Proxy
from tornado import web

# In the hub's folder: what HAProxy reads when it starts, and where it takes commands.
_ROUTES, _SOCKET = Path("routes"), "proxy.sock"
# What is asked for: label, smallest value, step, and what the form suggests.
_FIELDS = {
    "gpus": ("GPUs", 0, 1, 0),
    "cpus": ("CPUs", 1, 1, 1),
    "memory": ("Memory in GiB", 0.5, 0.5, 2),
    "hours": ("Time in hours", 0.25, 0.25, 8),
}
_WEEK_H = 168.0
# Slurm's reasons, in words.
_REASONS = {
    "None": "Slurm has not looked at it yet",
    "Resources": "what it asks for is in use by other jobs",
    "Priority": "other jobs are in front of it",
}


@web.authenticated
def _take_port(handler: BatchSpawnerAPIHandler) -> None:
    """Take the port of a server; batchspawner's own handler sets any attribute of the spawner."""
    token, data = handler.get_auth_token(), handler.get_json_body()
    port = data.get("port") if isinstance(data, dict) else None
    mine = [s for s in handler.current_user.spawners.values() if token and s.api_token == token]
    if not mine or type(port) is not int or not 1024 <= port <= 65535:
        raise web.HTTPError(403)
    mine[0].port = port
    handler.set_status(201)
    handler.finish("{}")


BatchSpawnerAPIHandler.post = _take_port


class HAProxy(Proxy):
    """Keeps the routes in a map in which HAProxy looks paths up."""

    should_start = False

    def __init__(self, **settings: Any) -> None:
        """Go on with the routes of before: servers outlive the hub."""
        super().__init__(**settings)
        lines = [line.split() for line in _ROUTES.read_text().splitlines()]
        self._routes = {path: _route(path, f"http://{to}", {}) for path, to in lines}

    async def add_route(self, routespec: str, target: str, data: dict[str, Any]) -> None:
        """Send what begins with a path to a server."""
        self._routes[routespec] = _route(routespec, target, data)
        path = _ROUTES.absolute()
        await self._tell(f"del map {path} {routespec}; add map {path} {routespec} {_place(target)}")

    async def delete_route(self, routespec: str) -> None:
        """Send it to the hub again."""
        self._routes.pop(routespec, None)
        await self._tell(f"del map {_ROUTES.absolute()} {routespec}")

    async def get_all_routes(self) -> dict[str, dict[str, Any]]:
        """Return all routes."""
        return dict(self._routes)

    async def _tell(self, command: str) -> None:
        lines = [f"{path} {_place(route['target'])}\n" for path, route in self._routes.items()]
        _ROUTES.write_text("".join(lines))
        try:
            reader, writer = await asyncio.open_unix_connection(_SOCKET)
        except OSError as error:  # it reads the file when it starts
            self.log.warning("HAProxy does not answer: %s", error)
            return
        writer.write(f"{command}\n".encode())
        await reader.read()
        writer.close()


def _route(path: str, target: str, data: dict[str, Any]) -> dict[str, Any]:
    return {"routespec": path, "target": target, "data": data}


def _place(target: str) -> str:
    url = urlsplit(target)
    return f"{socket.gethostbyname(url.hostname or '')}:{url.port}"


class Refused(web.HTTPError):
    """A server is not started; its owner reads why."""

    def __init__(self, words: str) -> None:
        """Answer with these words."""
        super().__init__(400)
        self.jupyterhub_message = words


class Job(SlurmSpawner):
    """A researcher's server: a job with what the form asks for."""

    exec_prefix = "runuser -u {username} --"
    # State, reason, node.
    batch_query_cmd = "squeue -h -j {job_id} -o '%T %r %B'"
    batch_script = """#!/bin/sh
#SBATCH --job-name=jupyterhub --no-requeue
#SBATCH --output={{homedir}}/.jupyterhub-%j.log
#SBATCH --chdir={{homedir}}
#SBATCH --export={{keepvars}}
#SBATCH --nodes=1 --ntasks=1
#SBATCH --partition={{partition}} --time={{(hours * 60)|int}}
#SBATCH --cpus-per-task={{cpus}} --mem={{(memory * 1024)|int}}M
{% if gpus %}#SBATCH --gpus-per-node={{gpus}}
{% endif %}
[ -e .python ] || gpubed-pip --version
exec {{cmd}}
"""
    start_timeout = 7 * 24 * 3600  # it may wait that long for its turn
    http_timeout = 180
    startup_poll_interval = 2.0
    poll_interval = 15

    def options_form(self, _: Any) -> str:
        """Return the form, within what the cluster has."""
        partitions = _partitions()
        names = "".join(f"<option>{html.escape(name)}</option>" for name in partitions)
        fields = {"Partition": f'<select name="partition" {_STYLE}>{names}</select>'}
        for name, (label, least, step, usual) in _FIELDS.items():
            if most := max(found[name] for found in partitions.values()):
                value = f'value="{min(usual, most):g}" min="{least}" max="{most:g}" step="{step}"'
                field = f'<input type="number" name="{name}" {value} required {_STYLE}>'
                fields[f"{label} (up to {most:g})"] = field
        home = Path(f"~{self.user.name}").expanduser()
        total, _, free = (size / 2**30 for size in shutil.disk_usage(home))
        room = f"<p>{free:.1f} of {total:.1f} GiB are free where your files are.</p>"
        return room + "".join(
            f'<label class="d-block mb-3">{label} {field}</label>'
            for label, field in fields.items()
        )

    @staticmethod
    def apply_user_options(spawner: Job, asked: dict[str, Any]) -> None:
        """Take what the form or the API asks for, and nothing else."""
        spawner.user_options = _checked(asked)

    async def submit_batch_script(self) -> str:
        """Submit the job."""
        try:
            job: str = await super().submit_batch_script()
        except RuntimeError as refused:
            raise Refused(f"Slurm refuses the job: {refused}") from refused
        return job

    async def progress(self) -> AsyncIterator[dict[str, Any]]:
        """Say what the job waits for."""
        told = ""
        while True:
            state, _, rest = self.job_status.partition(" ")
            reason, _, node = rest.rpartition(" ")
            said = f"Job {self.job_id} runs on {node}; JupyterLab starts."
            if state != "RUNNING":
                said = f"Job {self.job_id} waits: {_REASONS.get(reason, state)} ({reason})."
            if self.job_id and state and said != told:
                told = said
                yield {"message": said}
            await asyncio.sleep(1)


_STYLE = 'class="form-control" style="max-width: 20em"'


def _partitions() -> dict[str, dict[str, float]]:
    """Return the most that a node of each partition has, by field."""
    ask = ["sinfo", "--noheader", "--Node", "--format=%R|%c|%m|%G|%l"]
    said = subprocess.run(ask, capture_output=True, text=True, check=True, timeout=10).stdout
    found: dict[str, dict[str, float]] = {}
    for line in said.splitlines():
        name, cpus, memory, gres, limit = line.split("|")
        most = found.setdefault(name, dict.fromkeys(_FIELDS, 0.0))
        node = {
            "gpus": sum(map(int, re.findall(r"gpu:(?:[^:,(]+:)?(\d+)", gres))),
            "cpus": int(cpus),
            "memory": math.floor(int(memory) / 512) / 2,
            "hours": _hours(limit),
        }
        most.update({field: max(most[field], value) for field, value in node.items()})
    return found


def _hours(limit: str) -> float:
    """Return a time limit of Slurm's, as 2-00:00:00, in hours, and at most a week."""
    if limit == "infinite":
        return _WEEK_H
    days, _, clock = limit.rpartition("-")
    hours = sum(int(part) * 60**power for power, part in enumerate(clock.split(":")[::-1])) / 3600
    return min(int(days or 0) * 24 + hours, _WEEK_H)


def _checked(asked: dict[str, Any]) -> dict[str, Any]:
    """Return what is asked for, each within what the partition has."""
    partitions = _partitions()
    name = str(asked.get("partition") or next(iter(partitions)))
    if name not in partitions:
        raise Refused(f"There is no partition {name}: choose one of {', '.join(partitions)}.")
    found: dict[str, Any] = {"partition": name}
    for field, (label, least, _, usual) in _FIELDS.items():
        most = partitions[name][field]
        try:
            value = float(asked.get(field, min(usual, most)))
        except (TypeError, ValueError):
            raise Refused(f"{label}: {asked[field]!r} is no number.") from None
        if not min(least, most) <= value <= most:
            raise Refused(f"{label}: partition {name} has {least:g} to {most:g} on a node.")
        found[field] = value if field in ("memory", "hours") else int(value)
    return found

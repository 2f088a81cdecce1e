"""`gpubed doctor` on OpenStack: tools, credentials, clock, and whether the cloud has it all."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from typing import Any

from openstack.connection import Connection
from pydantic import BaseModel

from gpubed.backends.openstack import availability, cloud, clouds_file
from gpubed.backends.openstack.needs import Needs
from gpubed.core import reading, record
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths
from gpubed.core.reading import Unreadable
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.spec.plan import plan
from gpubed.testbeds.base import Finding

_PLUGIN = "openstack"


_SKEW_S = 120.0
_FIX = "gpubed doctor CLUSTER --fix"


class _Plugin(BaseModel):
    """As `pulumi plugin ls --json` lists it."""

    name: str
    version: str | None = None


def findings(spec: ClusterSpec, paths: ClusterPaths, before: Needs | None) -> list[Finding]:
    """Look at everything; what does not depend on a specification first.

    Args:
        spec: What is wanted.
        paths: The cluster's paths.
        before: What the specification that was applied last needs; None where there is none.
    """
    return [*tools(), *cloud_findings(spec, paths, before)]


def tools() -> list[Finding]:
    """Look at what must be on this machine."""
    return [_cli(), *_plugin()]


def install_plugin(say: Callable[[str], None]) -> None:
    """Install the plugin that Pulumi's OpenStack package needs, with Pulumi's own installer.

    Raises:
        GpubedError: There is no CLI, or the download failed.
    """
    if any(finding.ok for finding in _plugin()):
        say(f"Pulumi's openstack plugin {_wanted()} is there")
        return
    command = ["pulumi", "plugin", "install", "resource", _PLUGIN, _wanted()]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        raise GpubedError("the Pulumi CLI is not on PATH", _FIX) from None
    except subprocess.CalledProcessError as error:
        why = str(error.stderr).strip().splitlines()[-1:] or ["no reason given"]
        raise GpubedError(f"Pulumi's openstack plugin could not be installed: {why[0]}") from None
    say(f"installed Pulumi's openstack plugin {_wanted()}")


def _cli() -> Finding:
    path = shutil.which("pulumi")
    message = f"Pulumi CLI at {path}" if path else "backend openstack needs Pulumi's CLI"
    return Finding("openstack.engine", path is not None, message, None if path else _FIX)


def _plugin() -> Iterator[Finding]:
    if shutil.which("pulumi") is None:
        return  # told already
    listed = subprocess.run(
        ["pulumi", "plugin", "ls", "--json"], check=False, capture_output=True, text=True
    )
    there = [p.version for p in _plugins(listed.stdout) if p.name == _PLUGIN]
    right = _wanted() in there or shutil.which(f"pulumi-resource-{_PLUGIN}") is not None
    message = f"Pulumi's openstack plugin {_wanted()}" + ("" if right else " is not installed")
    yield Finding("openstack.plugin", right, message, None if right else _FIX)


def _plugins(listed: str) -> list[_Plugin]:
    try:
        return reading.reply(listed, "what Pulumi has installed").json(list[_Plugin])
    except Unreadable:
        return []


def _wanted() -> str:
    return version("pulumi_openstack")


def cloud_findings(
    spec: ClusterSpec, paths: ClusterPaths, before: Needs | None
) -> Iterator[Finding]:
    """Look at credentials, clock, region, and whether the cloud has what is wanted."""
    wanted = plan(spec)
    needs = Needs.of(wanted)
    try:
        yield clouds_file.finding(paths.project)
        connection = cloud.connect(needs.cloud, needs.region)
        clouds_file.require_login(connection, paths.project)
        with cloud.errors("log in"):
            connection.session.get_token()  # `authorize` hides what Keystone says
            yield _identity(connection)
            yield clouds_file.mixture(connection)
            yield _clock(connection)
            region = _region(connection)
        yield region
        if not region.ok:
            return  # no service of the cloud can be found
        with cloud.errors("look at what the cloud has"):
            uuid = record.uuid(paths)
            held = availability.held(connection, needs, spec.name, uuid, before)
            yield from availability.findings(connection, needs, held)
    except GpubedError as error:
        yield Finding("openstack.credentials", False, error.message, error.hint)


def _identity(connection: Connection) -> Finding:
    project = connection.current_project.name or connection.current_project_id
    where = connection.config.region_name or "the only region"
    return Finding("openstack.credentials", True, f"project {project} in {where}")


def _region(connection: Connection) -> Finding:
    wanted = connection.config.region_name
    login: Any = connection.session.auth  # of any kind; `get_token` has used it
    catalog = login.get_access(connection.session).service_catalog
    services = catalog.get_endpoints_data(interface="public").values()
    there = {str(endpoint.region_name) for endpoints in services for endpoint in endpoints}
    if not wanted or wanted in there:
        return Finding("openstack.region", True, wanted or "the only region")
    return Finding(
        "openstack.region",
        False,
        f"the cloud has no region {wanted!r}; there are: {', '.join(sorted(there)) or 'none'}",
        "set backend.region, or region_name in clouds.yaml, to one of them",
    )


def _clock(connection: Connection) -> Finding:
    answer = connection.session.get(
        connection.config.auth["auth_url"], authenticated=False, raise_exc=False
    )
    if "Date" not in answer.headers:
        return Finding("openstack.clock", True, "the cloud does not tell the time")
    try:
        theirs = parsedate_to_datetime(answer.headers["Date"]).timestamp()
    except (ValueError, OverflowError):
        return Finding("openstack.clock", True, "the cloud tells a time that is none")
    skew = time.time() - theirs
    right = abs(skew) <= _SKEW_S
    message = f"this machine's clock is {skew:+.0f} s from the cloud's"
    return Finding("openstack.clock", right, message, None if right else "set this machine's clock")

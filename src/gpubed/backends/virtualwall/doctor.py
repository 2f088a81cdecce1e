"""Checks of what must be in place before nodes are requested."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from shlex import quote

from gpubed.backends import pem
from gpubed.backends.virtualwall import availability, documents
from gpubed.backends.virtualwall import login as logins
from gpubed.backends.virtualwall.config import Bastion, Config, unmapped
from gpubed.backends.virtualwall.connection import Connection, connect
from gpubed.backends.virtualwall.login import Login
from gpubed.core.errors import GpubedError, PrerequisiteMissing, Refused
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.testbeds.base import Finding

_SOON = timedelta(days=14)
_CONNECT_S = 10.0
_CLOCK_S = 120.0


def findings(spec: ClusterSpec) -> Iterator[Finding]:
    """Check login, servers, project and bastion, one after the other."""
    config = Config.of(spec.backend)
    try:
        login = logins.load(config)
    except GpubedError as error:
        yield Finding("virtualwall.login", False, error.message, error.hint)
        return
    left = login.expires - datetime.now(UTC)
    enough = left > max(_SOON, timedelta(seconds=spec.lease.duration))
    until = f"certificate until {login.expires:%Y-%m-%d}"
    message = f"{login.user.name} of {login.user.authority}, {until}"
    message += "" if enough else f": {left.days} days are left"
    yield Finding("virtualwall.login", enough, message, pem.RENEW)
    mode = login.path.stat().st_mode & 0o777
    kind = "encrypted" if login.encrypted else "not encrypted"
    message, fix = f"{login.path} ({kind}, mode {mode:o})", f"chmod 600 {quote(str(login.path))}"
    yield Finding("virtualwall.key", not mode & 0o077, message, fix)
    try:
        # No retries: `doctor` reports faults at once.
        there = connect(config.model_copy(update={"patience": 1.0}))
    except GpubedError as error:
        yield Finding("virtualwall.aggregate", False, error.message, error.hint)
    else:
        urn, message = there.manager, f"AM API v3 at {there.aggregate.url}"
        same = urn in ("", config.aggregate.urn)
        if not same:
            message = f"the aggregate calls itself {urn}, not {config.aggregate.urn}"
        yield Finding("virtualwall.aggregate", same, message, f"backend.aggregate.urn: {urn}")
        # This machine checks certificates by its clock, the testbed ends leases by its own.
        ahead_s = there.aggregate.clock_ahead_s
        order = "behind" if ahead_s > 0 else "ahead of"
        message = f"{abs(ahead_s):.0f} s {order} the testbed's clock"
        fix = "set this machine's clock: timedatectl set-ntp true"
        yield Finding("virtualwall.clock", abs(ahead_s) <= _CLOCK_S, message, fix)
        yield _tried(
            "virtualwall.members",
            lambda: f"{there.login.user} has {len(there.credentials())} credential(s)",
        )
        yield _tried("virtualwall.project", lambda: _project(there))
        yield _tried("virtualwall.images", lambda: _images(there, spec))
    if bastion := config.bastion:
        yield _tried("virtualwall.bastion", lambda: _bastion(bastion, login))
    elif not config.nat:
        yield Finding("virtualwall.way", True, "nodes are reached at their public addresses")
    else:
        # From outside, nodes of the Virtual Wall have IPv6 addresses only.
        has_ipv6 = _has_ipv6()
        lack = "" if has_ipv6 else ", and this machine has no IPv6 address"
        fix = "name the testbed's bastion in cluster.yml: backend.bastion: {host: HOST}"
        yield Finding("virtualwall.way", has_ipv6, f"nodes are reached directly{lack}", fix)


def _project(there: Connection) -> str:
    if not there.has_project():
        raise Refused(
            f"{there.project}: the authority knows no such project of yours",
            "correct backend.project in cluster.yml, or ask the project's lead to let you in",
        )
    slices = there.of_project()
    ends = [slice_.expires for slice_ in slices if not slice_.is_closed]
    first = f", the first ends {documents.timestamp(min(ends))}" if ends else ""
    return f"{there.project}: {len(slices)} slice(s) that have not expired{first}"


def _images(there: Connection, spec: ClusterSpec) -> str:
    offered, default = availability.images(there)
    lines = [f"{image} is {urn}" for image, urn in there.config.images.items()]
    first = f" ({', '.join(default)})" if default else ""
    lines += [f"{image} is the testbed's default{first}" for image in unmapped(spec)]
    lines += [f"it offers {', '.join(offered)}"] if offered else []
    return "; ".join(lines)


def _bastion(bastion: Bastion, login: Login) -> str:
    logins.require(bastion, login)
    try:
        socket.create_connection((bastion.host, bastion.port), _CONNECT_S).close()
    except OSError as error:
        raise PrerequisiteMissing(
            f"the bastion {bastion.host}:{bastion.port} does not answer: {error}",
            "a firewall on the way out may forbid SSH",
        ) from None
    return f"{logins.bastion_user(bastion, login)}@{bastion.host}"


def _has_ipv6() -> bool:
    try:
        # `connect` of a UDP socket sends nothing.
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.connect(("2001:db8::1", 9))
            return not str(probe.getsockname()[0]).startswith(("fe80", "::1"))
    except OSError:
        return False


def _tried(id_: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(id_, True, look())
    except GpubedError as error:
        return Finding(id_, False, error.message, error.hint)

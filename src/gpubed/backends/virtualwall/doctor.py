"""What must be in place before the testbed is asked for nodes."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from shlex import quote

from gpubed.backends.virtualwall import bastion, limits, supply, times
from gpubed.backends.virtualwall import login as logins
from gpubed.backends.virtualwall.config import Config
from gpubed.backends.virtualwall.connection import Connection, connect
from gpubed.backends.virtualwall.faults import LoginRefused
from gpubed.backends.virtualwall.login import Login
from gpubed.core.errors import GpubedError, Refused
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.testbeds.base import Finding

_SOON = timedelta(days=14)
_CONNECT_S = 10.0
_CLOCK_S = 120.0


def findings(spec: ClusterSpec) -> list[Finding]:
    """Return what was looked at."""
    config = spec.backend
    assert isinstance(config, Config)  # noqa: S101
    try:
        login = logins.load(config)
    except GpubedError as error:
        return [Finding("virtualwall.login", False, error.message, error.hint)]
    found = [_login(login, spec), _key_file(login)]
    # Impatient: whoever asks wants to know what is wrong now.
    hasty = config.model_copy(update={"patience": 1.0})
    found += [*_testbed(hasty, spec), *_bastion(config, login)]
    return found


def _login(login: Login, spec: ClusterSpec) -> Finding:
    left = login.expires - datetime.now(UTC)
    message = (
        f"{login.user.name} of {login.user.authority}, certificate until {login.expires:%Y-%m-%d}"
    )
    enough = left > max(_SOON, timedelta(seconds=spec.lease.duration))
    if not enough:
        message += f": {left.days} days are left"
    return Finding(
        "virtualwall.login", enough, message, "download a new login certificate from the portal"
    )


def _key_file(login: Login) -> Finding:
    mode = login.path.stat().st_mode & 0o777
    kind = "encrypted" if login.encrypted else "not encrypted"
    closed = not mode & 0o077
    return Finding(
        "virtualwall.key",
        closed,
        f"{login.path} ({kind}, mode {mode:o})",
        f"chmod 600 {quote(str(login.path))}",
    )


def _testbed(config: Config, spec: ClusterSpec) -> Iterator[Finding]:
    there: list[Connection] = []

    def meet() -> str:
        there.append(connect(config))
        version = there[0].aggregate.version()
        if version.urn and version.urn != config.aggregate.urn:
            raise LoginRefused(
                f"the aggregate calls itself {version.urn}, not {config.aggregate.urn}",
                f"backend.aggregate.urn: {version.urn}",
            )
        return f"AM API v3 at {version.url}"

    yield _tried("virtualwall.aggregate", meet)
    if not there:
        return
    connection = there[0]
    yield _clock(connection.aggregate.clock_ahead_s or 0.0)
    yield _tried("virtualwall.members", lambda: _member(connection))
    yield _tried("virtualwall.project", lambda: _project(connection))
    yield _tried("virtualwall.images", lambda: _images(connection, spec))


def _images(there: Connection, spec: ClusterSpec) -> str:
    """Say what is loaded, and what else could be: `image` alone does not tell."""
    offered, default = supply.images(there)
    lines = [f"{image} is {urn}" for image, urn in there.config.images.items()]
    first = f" ({', '.join(default)})" if default else ""
    lines += [f"{image} is the testbed's default{first}" for image in limits.unmapped(spec)]
    lines += [f"it offers {', '.join(offered)}"] if offered else []
    return "; ".join(lines)


def _clock(ahead_s: float) -> Finding:
    """Certificates and credentials are valid by the clock; leases end by the testbed's."""
    message = f"{abs(ahead_s):.0f} s {'behind' if ahead_s > 0 else 'ahead of'} the testbed's clock"
    fix = "set this machine's clock: timedatectl set-ntp true"
    return Finding("virtualwall.clock", abs(ahead_s) <= _CLOCK_S, message, fix)


def _member(there: Connection) -> str:
    count = len(there.authority.credentials())
    return f"{there.login.user} has {count} credential(s)"


def _project(there: Connection) -> str:
    if there.authority.has_project(there.project) is False:
        raise Refused(
            f"{there.project}: the authority knows no such project of yours",
            "correct backend.project in cluster.yml, or ask the project's lead to let you in",
        )
    slices = there.authority.of_project(there.project)
    ends = [slice_.expires for slice_ in slices if not slice_.is_closed]
    first = f", the first ends {times.write(min(ends))}" if ends else ""
    return f"{there.project}: {len(slices)} slice(s) that have not expired{first}"


def _bastion(config: Config, login: Login) -> Iterator[Finding]:
    if config.bastion is None:
        # From outside, nodes of the Virtual Wall have IPv6 addresses only.
        has_ipv6 = _has_ipv6()
        said = "" if has_ipv6 else ", and this machine has no IPv6 address"
        fix = "name the testbed's bastion in cluster.yml: backend.bastion: {host: HOST}"
        yield Finding("virtualwall.way", has_ipv6, f"nodes are reached at once{said}", fix)
        return
    there = config.bastion

    def meet() -> str:
        bastion.host_keys(there)
        bastion.require_key(login)
        try:
            socket.create_connection((there.host, there.port), _CONNECT_S).close()
        except OSError as error:
            raise GpubedError(
                f"the bastion {there.host}:{there.port} does not answer: {error}",
                "a firewall on the way out may forbid SSH",
            ) from None
        return f"{bastion.user(there, login)}@{there.host}"

    yield _tried("virtualwall.bastion", meet)


def _has_ipv6() -> bool:
    try:
        # Sends nothing: only asks which address would be used.
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

"""Finds the hosts in specifications, and logs in with the user's key and known host keys.

Reads only hosts, logins and bastions, so that `down` and `status` work while another part of the
specification is invalid.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gpubed.backends.static.config import Config, Host
from gpubed.core.errors import PrerequisiteMissing
from gpubed.core.reading import Unreadable
from gpubed.nodes import allocation, host_keys
from gpubed.nodes.allocation import Hop, Node
from gpubed.spec.clusterspec import ClusterSpec
from gpubed.testbeds.options import TestbedOptions


class UnknownHost(PrerequisiteMissing):
    """The user trusts no key of a host, so gpubed does not log in to it."""


def known(reach: TestbedOptions) -> Config | None:
    """Return the options of a cluster's specification, or else of the one applied last.

    None if neither names own hosts.
    """
    found = _config(reach.options) or _config(reach.last_options)
    return Config.of(reach.specification.backend) if found is None and reach.is_former else found


def attempted(reach: TestbedOptions) -> list[Config]:
    """Return the options of all kept specifications."""
    return [found for found in map(_config, reach.former_options()) if found]


def each(config: Config) -> Iterator[tuple[Host, str]]:
    """Yield all hosts with their nodes' names, also those beyond a group's `count`."""
    for group, hosts in config.hosts.items():
        yield from ((host, f"{group}-{index}") for index, host in enumerate(hosts))


def wanted(spec: ClusterSpec) -> dict[str, Host]:
    """Return the hosts of a specification's nodes, by node."""
    names = {name for group in spec.nodes for name in group.node_names}
    return {name: host for host, name in each(Config.of(spec.backend)) if name in names}


def _config(section: Mapping[str, Any] | None) -> Config | None:
    if section is None:
        return None
    kept = {key: value for key, value in section.items() if key in Config.model_fields}
    try:
        # A group is empty after an edit that removed its last host.
        hosts = {
            group: [{key: host[key] for key in host.keys() & {"address", "port"}} for host in some]
            for group, some in (section.get("hosts") or {}).items()
            if some
        }
        return Config.model_validate({**kept, "hosts": hosts})
    except (AttributeError, LookupError, TypeError, ValidationError):
        return None  # the last applied specification counts instead


def door(config: Config, host: Host, name: str) -> Node:
    """Return a host as a node for a login with the user's own key; see `known_keys`."""
    keys = known_keys(config, host.address, host.port, UnknownHost)
    here = Hop(address=host.address, port=host.port, user=config.user, host_keys=keys)
    return allocation.host_as_node(here, name, hops(config))


def hops(config: Config) -> tuple[Hop, ...]:
    """Return the bastions, each with the user's key for it."""
    return tuple(
        Hop(
            address=bastion.address,
            port=bastion.port,
            user=bastion.user or config.user,
            host_keys=known_keys(config, bastion.address, bastion.port),
            identity=str(Path(bastion.key or config.key).expanduser()),
        )
        for bastion in config.bastions
    )


def known_keys(
    config: Config,
    address: str,
    port: int,
    unknown: type[PrerequisiteMissing] = PrerequisiteMissing,
) -> tuple[str, ...]:
    """Return the host keys that the user trusts for an address; raise `unknown` without any."""
    path = Path(config.known_hosts).expanduser()
    meet = f"ssh -p {port} {config.user}@{address}   (once, and compare the fingerprint)"
    try:
        if found := host_keys.keys(path, address, port):
            return found
        never = host_keys.revoked(path, address, port)
    except Unreadable as error:
        raise PrerequisiteMissing(error.message, meet) from None
    if alias := _alias(address):
        raise unknown(
            f"{address} is an alias in your ssh configuration, which gpubed does not read",
            f"write its address into cluster.yml: {alias}; or take the aliases' hosts and jumps "
            "into a new one: gpubed init NAME --from ~/.ssh/config",
        )
    name = allocation.known_as(address, port)
    if never:
        raise unknown(f"{path} has no host key of {name} that is not revoked", meet)
    raise unknown(f"the host key of {name} is not in {path}", meet)


def _alias(address: str) -> str:
    """Return an alias of ~/.ssh/config as options for cluster.yml; empty if it is none."""
    if not shutil.which("ssh"):
        return ""
    done = subprocess.run(["ssh", "-G", address], capture_output=True, text=True, check=False)
    ssh = dict(line.partition(" ")[::2] for line in done.stdout.splitlines())
    if ssh.get("hostname", address).lower() == address.lower():
        return ""
    bastion = f"; bastions: {ssh['proxyjump']}" if "proxyjump" in ssh else ""
    return f"address: {ssh['hostname']}, port: {ssh['port']}, user: {ssh['user']}{bastion}"


def trusted(config: Config, host: Host, keys: Iterable[str]) -> list[str]:
    """Return the keys of a host (`type base64`) that the user has not revoked."""
    path = Path(config.known_hosts).expanduser()
    never = host_keys.revoked(path, host.address, host.port)
    return [key for key in keys if key.split()[1] not in never]

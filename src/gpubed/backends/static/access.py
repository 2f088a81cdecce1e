"""How the user reaches a host before it is part of a cluster: own key, known host keys."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from gpubed.backends.static.config import Bastion, Config, Host
from gpubed.core.errors import PrerequisiteMissing
from gpubed.core.reading import Unreadable
from gpubed.nodes import allocation, known_hosts
from gpubed.nodes.allocation import Hop, Node


class UnknownHost(PrerequisiteMissing):
    """The user trusts no key of a host, so that nobody logs in to it."""


def door(config: Config, host: Host, name: str) -> Node:
    """Return a host as a node that the user's own key lets into.

    Raises:
        UnknownHost: Its host key is not known yet, or not any more.
        PrerequisiteMissing: A bastion's is not known, or the file cannot be read.
    """
    keys = known_keys(config, host.address, host.port, UnknownHost)
    here = Hop(address=host.address, port=host.port, user=config.user, host_keys=keys)
    return allocation.door(here, name, hops(config))


def hops(config: Config) -> tuple[Hop, ...]:
    """Return the bastions; each is logged into with a key of the user."""
    return tuple(_hop(config, bastion) for bastion in config.bastions)


def _hop(config: Config, bastion: Bastion) -> Hop:
    return Hop(
        address=bastion.address,
        port=bastion.port,
        user=bastion.user or config.user,
        host_keys=known_keys(config, bastion.address, bastion.port),
        identity=str(Path(bastion.key or config.key).expanduser()),
    )


def known_keys(
    config: Config,
    address: str,
    port: int,
    unknown: type[PrerequisiteMissing] = PrerequisiteMissing,
) -> tuple[str, ...]:
    """Return the host keys that the user trusts for an address.

    Raises:
        unknown: There are none, or all are revoked.
        PrerequisiteMissing: The file cannot be read.
    """
    path = Path(config.known_hosts).expanduser()
    meet = f"ssh -p {port} {config.user}@{address}   (once, and compare the fingerprint)"
    try:
        found = known_hosts.keys(path, address, port)
        never = known_hosts.revoked(path, address, port)
    except Unreadable as error:
        raise PrerequisiteMissing(error.message, meet) from None
    if not found and (alias := _alias(address)):
        raise unknown(
            f"{address} is an alias in your ssh configuration, which gpubed does not read",
            f"write its address into cluster.yml: {alias}",
        )
    if not found:
        name = known_hosts.known_as(address, port)
        if never:
            raise unknown(f"{path} has no host key of {name} that is not revoked", meet)
        raise unknown(f"the host key of {name} is not in {path}", meet)
    return found


def _alias(address: str) -> str:
    """Return what the user's ssh configuration says of an alias, as keys of cluster.yml.

    Empty for an address that is no alias.
    """
    if not shutil.which("ssh"):
        return ""
    done = subprocess.run(["ssh", "-G", address], capture_output=True, text=True, check=False)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    if said.get("hostname", address).lower() == address.lower():
        return ""
    jump = said.get("proxyjump")
    bastion = f"; bastions: {jump}" if jump else ""
    return f"address: {said['hostname']}, port: {said['port']}, user: {said['user']}{bastion}"


def trusted(config: Config, host: Host, keys: Iterable[str]) -> list[str]:
    """Return those of a host's own keys (`type base64`) that the user has not revoked.

    Raises:
        Unreadable: The user's file cannot be read.
    """
    path = Path(config.known_hosts).expanduser()
    never = known_hosts.revoked(path, host.address, host.port)
    return [key for key in keys if key.split()[1] not in never]

"""The way to nodes through a bastion, for controllers without IPv6."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from shlex import quote

import paramiko

from gpubed.backends.virtualwall.config import Bastion, Config
from gpubed.backends.virtualwall.login import Login
from gpubed.core import secret
from gpubed.core.errors import PrerequisiteMissing
from gpubed.core.paths import ClusterPaths
from gpubed.core.reading import Missing
from gpubed.nodes import known_hosts
from gpubed.nodes.allocation import Hop

# Accounts of this authority are named `fff…` at the bastion; older ones are not.
_PREFIXED, _PREFIX = "ilabt.imec.be", "fff"
KNOWN_HOSTS = Path("~/.ssh/known_hosts")


def way(config: Config, login: Login, paths: ClusterPaths) -> tuple[Hop, ...]:
    """Return the hops to nodes, if any; PrerequisiteMissing if the bastion's key is unknown."""
    there = config.bastion
    if there is None:
        return ()
    renew_identity(config, login, paths)
    whose, keys = user(there, login), host_keys(there)
    identity = str(login.path if login.encrypted else _copy(paths))
    return (
        Hop(address=there.host, port=there.port, user=whose, host_keys=keys, identity=identity),
    )


def user(bastion: Bastion, login: Login) -> str:
    """Return our name at the bastion."""
    prefix = _PREFIX if login.user.authority == _PREFIXED else ""
    return bastion.user or prefix + login.user.name


def host_keys(bastion: Bastion) -> tuple[str, ...]:
    """Return the bastion's host keys, from the specification or the user's known_hosts."""
    found = bastion.host_keys
    if not found:
        with suppress(Missing):
            found = known_hosts.keys(KNOWN_HOSTS.expanduser(), bastion.host, bastion.port)
    if not found:
        raise PrerequisiteMissing(
            f"the host key of the bastion {bastion.host} is not known",
            f"ssh -p {bastion.port} {bastion.host} true, and compare the fingerprint with the "
            "testbed's page; or write it into backend.bastion.host_keys",
        )
    return found


def require(bastion: Bastion, login: Login) -> None:
    """Raise PrerequisiteMissing unless the bastion's host key is known and the login is usable."""
    host_keys(bastion)
    held = {key.get_base64() for key in paramiko.Agent().get_keys()} if login.encrypted else ()
    if login.encrypted and login.public_key.split()[1] not in held:
        raise PrerequisiteMissing(
            f"the bastion needs the key of {login.path}, which has a passphrase "
            "and is not held by an SSH agent",
            f"ssh-add {quote(str(login.path))}",
        )


def renew_identity(config: Config, login: Login, paths: ClusterPaths) -> None:
    """Write the login's current key where OpenSSH can read it.

    A key with a passphrase is left to an SSH agent, so that no unprotected copy is made.
    """
    if config.bastion and not login.encrypted:
        secret.write(_copy(paths), login.private_pem)


def _copy(paths: ClusterPaths) -> Path:
    return paths.secrets / "virtualwall-login"

"""The way to nodes for those who have no IPv6."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from shlex import quote

import paramiko

from gpubed.backends.virtualwall import login as logins
from gpubed.backends.virtualwall.config import Bastion, Config
from gpubed.backends.virtualwall.login import Login
from gpubed.core import files
from gpubed.core.errors import PrerequisiteMissing
from gpubed.core.paths import ClusterPaths
from gpubed.core.reading import Missing
from gpubed.nodes import known_hosts
from gpubed.nodes.allocation import Hop

# Accounts of this authority are named `fff…` at the bastion; older ones are not.
_PREFIXED, _PREFIX = "ilabt.imec.be", "fff"
_LARGEST = 2**20
KNOWN_HOSTS = Path("~/.ssh/known_hosts")


def way(config: Config, login: Login, paths: ClusterPaths) -> tuple[Hop, ...]:
    """Return the hops to nodes; none without a bastion.

    Raises:
        PrerequisiteMissing: The bastion's host key is not known.
    """
    if config.bastion is None:
        return ()
    return (
        Hop(
            address=config.bastion.host,
            port=config.bastion.port,
            user=user(config.bastion, login),
            host_keys=host_keys(config.bastion),
            identity=str(_identity(config, login, paths)),
        ),
    )


def user(bastion: Bastion, login: Login) -> str:
    """Return our name at the bastion."""
    prefix = _PREFIX if login.user.authority == _PREFIXED else ""
    return bastion.user or prefix + login.user.name


def host_keys(bastion: Bastion) -> tuple[str, ...]:
    """Return the bastion's host keys, from the specification or the user's known_hosts.

    Raises:
        PrerequisiteMissing: There are none.
    """
    if bastion.host_keys:
        return bastion.host_keys
    found: tuple[str, ...] = ()
    with suppress(Missing):
        found = known_hosts.keys(KNOWN_HOSTS.expanduser(), bastion.host, bastion.port)
    if not found:
        raise PrerequisiteMissing(
            f"the host key of the bastion {bastion.host} is not known",
            f"ssh -p {bastion.port} {bastion.host} true, and compare the fingerprint with the "
            "testbed's page; or write it into backend.bastion.host_keys",
        )
    return found


def keep_identity(config: Config, login: Login, paths: ClusterPaths) -> None:
    """Check that there will be a way to nodes, and keep its key where OpenSSH can read it.

    Raises:
        PrerequisiteMissing: The bastion's host key is not known, or the login's key cannot be used.
    """
    if config.bastion:
        host_keys(config.bastion)
        require_key(login)
        renew_identity(config, login, paths)


def renew_identity(config: Config, login: Login, paths: ClusterPaths) -> None:
    """Keep the login's key where OpenSSH can read it; it may have been renewed since.

    A key with a passphrase is left to an SSH agent: no copy without one is made.
    """
    if config.bastion and not login.encrypted and not _is_of(login, _copy(paths)):
        logins.write_key(config, _copy(paths))


def require_key(login: Login) -> None:
    """Check that a key with a passphrase is held by an SSH agent.

    Raises:
        PrerequisiteMissing: It is not.
    """
    if not login.encrypted:
        return
    wanted = login.public_key.split()[1]
    if wanted not in {key.get_base64() for key in paramiko.Agent().get_keys()}:
        raise PrerequisiteMissing(
            f"the bastion needs the key of {login.path}, which has a passphrase "
            "and is not held by an SSH agent",
            f"ssh-add {quote(str(login.path))}",
        )


def _identity(config: Config, login: Login, paths: ClusterPaths) -> Path:
    """Return the key for the bastion."""
    renew_identity(config, login, paths)
    return login.path if login.encrypted else _copy(paths)


def _is_of(login: Login, copy: Path) -> bool:
    try:
        return logins.public_key(files.read(copy, _LARGEST)) == login.public_key
    except (OSError, ValueError):
        return False


def _copy(paths: ClusterPaths) -> Path:
    return paths.secrets / "virtualwall-login"

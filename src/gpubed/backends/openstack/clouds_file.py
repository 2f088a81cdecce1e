"""Which `clouds.yaml` holds, for all who read one.

openstacksdk looks in the current folder and below $HOME. Pulumi's plugin looks in the
project's folder and below the home that the system's accounts name, whatever $HOME says.
So it is told; what it cannot be told, `gpubed doctor` names.

Where an entry is used, openstacksdk leaves OS_* variables alone, and the plugin fills what the
entry lacks from them: what is made would be in another project than the one that is looked at.
So the plugin gets none of them.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from openstack import config
from openstack.connection import Connection

from gpubed.backends.openstack import cloud, credentials
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import Project
from gpubed.testbeds.base import Finding

_VARIABLE = "OS_CLIENT_CONFIG_FILE"
_PROFILES = "clouds-public.yaml"
# Others are left out by gophercloud, which logs in with whatever fields it finds.
_LOGINS = (
    "password",
    "token",
    "v2password",
    "v2token",
    "v3password",
    "v3token",
    "v3applicationcredential",
)
_SELECTORS = (_VARIABLE, "OS_CLIENT_SECURE_FILE", "OS_CLOUD", "OS_CLOUD_NAME")


def variables(connect: Callable[[], Connection]) -> dict[str, str]:
    """Return what tells the plugin which file and entry the backend reads.

    Variables that it must not see are empty: who starts it cannot take them away.

    Args:
        connect: Returns the connection to the cluster's cloud, where there is one.
    """
    found = {}
    with suppress(GpubedError):  # `connect` is called again, and reports it
        if path := credentials.found()[0]:
            found[_VARIABLE] = str(path)
        connection = connect()
        if entry := cloud.entry(connection):
            found |= {**dict.fromkeys(_strays(connection), ""), "OS_CLOUD": entry}
    return found


def require_login(connection: Connection, project: Project) -> None:
    """Refuse a way to log in that openstacksdk knows and the plugin does not.

    Args:
        connection: As openstacksdk logs in.
        project: In whose folder the plugin looks, too.

    Raises:
        PrerequisiteMissing: It is such a way, or `profile` names what the plugin does not find.
    """
    wanted = str(connection.config.config.get("auth_type") or "password").lower()
    if wanted not in _LOGINS:
        raise PrerequisiteMissing(
            f"OpenStack: Pulumi's plugin cannot log in with auth_type {wanted}",
            "make an application credential (openstack application credential create gpubed), "
            "and put it into clouds.yaml with auth_type: v3applicationcredential",
        )
    profile = _profile(connection)
    if profile and not any((folder / _PROFILES).is_file() for folder in _folders(project)):
        raise PrerequisiteMissing(
            f"OpenStack: Pulumi's plugin does not know the profile {profile} of clouds.yaml",
            "write what it stands for (auth_url, region_name) into the entry, and leave it out",
        )


def _profile(connection: Connection) -> str | None:
    entry = cloud.entry(connection)
    written = config.OpenStackConfig().cloud_config["clouds"].get(entry) or {}
    return written.get("profile") or written.get("cloud")


def require_apart(connection: Connection) -> None:
    """Refuse OS_* variables beside an entry of clouds.yaml: the plugin would mix them.

    Raises:
        PrerequisiteMissing: There are such, which only `pulumi` without gpubed meets.
    """
    if strays := _strays(connection):
        raise PrerequisiteMissing(
            f"OpenStack: {connection.config.name} of clouds.yaml is used, and Pulumi's plugin "
            f"would mix it with {', '.join(strays)}",
            'eval "$(gpubed env CLUSTER)" in this shell unsets them',
        )


def mixture(connection: Connection) -> Finding:
    """Name OS_* variables that count for nothing beside an entry of clouds.yaml."""
    id_, entry, strays = "openstack.variables", cloud.entry(connection), _strays(connection)
    if entry is None:
        return Finding(id_, True, "credentials are those of OS_* variables")
    message = f"credentials are those of {entry} in clouds.yaml"
    if strays:
        message += f"; ignored: {', '.join(strays)}"
    return Finding(id_, True, message)


def _strays(connection: Connection) -> list[str]:
    if cloud.entry(connection) is None:
        return []
    return sorted(
        name
        for name, value in os.environ.items()
        if name.startswith("OS_") and name not in _SELECTORS and value
    )


def finding(project: Project) -> Finding:
    """Look whether the plugin finds the secrets that are in a file of their own."""
    id_, secrets = "openstack.secrets", credentials.found()[1]
    folders = _folders(project)
    if secrets is None or secrets.parent in [folder.resolve() for folder in folders]:
        return Finding(id_, True, "the plugin reads the files that gpubed reads")
    return Finding(
        id_,
        False,
        f"the plugin does not find {secrets}: it looks in {', '.join(map(str, folders))}",
        f"move it to {folders[1]}, or its content into clouds.yaml",
    )


def _folders(project: Project) -> list[Path]:
    """Return where the plugin looks for files that no variable names."""
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    return [project.root, home / ".config" / "openstack", Path("/etc/openstack")]

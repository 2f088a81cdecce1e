"""Which `clouds.yaml` holds, for all who read one.

openstacksdk looks in the current folder and below $HOME. Pulumi's plugin looks in the
project's folder and below the home that the system's accounts name, whatever $HOME says.
So it is told; what it cannot be told, `gpubed doctor` names.
"""

from __future__ import annotations

import os
import pwd
from pathlib import Path

from openstack import config, exceptions

from gpubed.backends.base import Finding
from gpubed.paths import Project

_VARIABLE = "OS_CLIENT_CONFIG_FILE"


def variables() -> dict[str, str]:
    """Return what tells the plugin which file the backend reads."""
    found = _found()[0]
    return {_VARIABLE: str(found)} if found else {}


def finding() -> Finding:
    """Look whether the plugin finds the secrets that are in a file of their own."""
    id_, secrets = "openstack.secrets", _found()[1]
    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    folders = [Project.find().root, home / ".config" / "openstack", Path("/etc/openstack")]
    if secrets is None or secrets.parent in [folder.resolve() for folder in folders]:
        return Finding(id_, True, "the plugin reads the files that gpubed reads")
    return Finding(
        id_,
        False,
        f"the plugin does not find {secrets}: it looks in {', '.join(map(str, folders))}",
        f"move it to {folders[1]}, or its content into clouds.yaml",
    )


def _found() -> tuple[Path | None, Path | None]:
    try:
        read = config.OpenStackConfig()
    except exceptions.SDKException:
        return None, None  # whoever connects says what is wrong
    files = read.config_filename, read.secure_config_filename
    plain, secrets = (Path(name).resolve() if name else None for name in files)
    return plain, secrets

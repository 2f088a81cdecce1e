"""The user data of a server: its host key, and the account that gpubed logs in to.

The controller makes the host key, so that it is known before the server boots. So the user data is
a secret (docs/adr/0011). A systemd unit blocks the metadata service once cloud-init is done, since
any program on the node could read the user data from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from email.mime.multipart import MIMEMultipart
from email.mime.text import MIMEText
from hashlib import sha256
from pathlib import Path
from typing import Any

import yaml

from gpubed.core import secret
from gpubed.core.paths import ClusterPaths
from gpubed.testbeds.driver import Change, Driver, Properties

USER = "gpubed"
_METADATA = "169.254.169.254"
_UNIT = "/etc/systemd/system/gpubed-metadata.service"
# https://docs.cloud-init.io/en/latest/reference/merging.html
_MERGE = "list(append)+dict(no_replace,recurse_list)+str()"
# The route is lost at each boot. Routes from DHCP have a higher metric.
_CLOSE = f"""\
[Unit]
Description=The metadata service is for cloud-init alone
After=cloud-final.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=ip route replace prohibit {_METADATA}/32 metric 0

[Install]
WantedBy=cloud-init.target
"""


def user_data(
    name: str,
    public_key: str,
    host_key: str,
    host_public_key: str,
    *,
    more_keys: Sequence[str] = (),
    own: str = "",
) -> str:
    """Return a node's user data, with account `gpubed` for `public_key` and `more_keys`.

    `own` is the user's own data, in any format of cloud-init. If both set a key, gpubed's counts;
    lists are joined.
    """
    user = {"name": USER, "shell": "/bin/bash", "lock_passwd": True}
    user |= {"sudo": "ALL=(ALL) NOPASSWD:ALL", "ssh_authorized_keys": [public_key, *more_keys]}
    document = {
        "hostname": name,
        "users": [user],
        "disable_root": True,
        "ssh_pwauth": False,
        "ssh_deletekeys": True,
        "ssh_keys": {"ed25519_private": host_key, "ed25519_public": host_public_key},
        "write_files": [{"path": _UNIT, "content": _CLOSE}],
        # Without --no-block, the unit and cloud-init would wait for each other.
        "runcmd": [["systemctl", "enable", "--now", "--no-block", _UNIT.rsplit("/", 1)[1]]],
    }
    ours = "#cloud-config\n" + yaml.safe_dump(document, sort_keys=False, width=1000)
    if not own:
        return ours
    # A constant boundary, since changed user data replaces the server.
    whole = MIMEMultipart(boundary="=" * 8 + sha256((ours + own).encode()).hexdigest())
    whole.attach(MIMEText(ours, "cloud-config"))
    theirs = MIMEText(own, "plain")  # cloud-init reads the kind from the first line
    theirs["Merge-Type"] = _MERGE
    whole.attach(theirs)
    return whole.as_string()


def key_path(paths: ClusterPaths, node: str) -> Path:
    """Return the file of a node's private host key."""
    return paths.secrets / f"host_{node}"


class HostKeyDriver(Driver):
    """Inputs: cluster, uuid, name. The private half is in a file, never in the state."""

    def __init__(self, paths: ClusterPaths) -> None:
        self._paths = paths

    def diff(self, result: Properties, olds: Properties, news: Properties) -> Change:
        """Replace the key, and so the node, if its file was lost or changed."""
        if secret.public_key(key_path(self._paths, news["name"])) != result.get("public"):
            return Change(replace=["public"])
        return super().diff(result, olds, news)

    def create(self, inputs: Properties) -> tuple[str, dict[str, Any]]:
        """Make the key, unless an interrupted run made it already."""
        public = secret.ensure_key(key_path(self._paths, inputs["name"]))
        return f"{inputs['uuid']}/{inputs['name']}", {"public": public}

    def read(self, id: str, inputs: Properties) -> dict[str, Any] | None:  # noqa: A002
        """Return the public half; None if the file is gone."""
        public = secret.public_key(key_path(self._paths, inputs["name"]))
        return {"public": public} if public else None

    def delete(self, id: str, inputs: Properties) -> None:  # noqa: A002
        """Delete the key's file."""
        key_path(self._paths, inputs["name"]).unlink(missing_ok=True)

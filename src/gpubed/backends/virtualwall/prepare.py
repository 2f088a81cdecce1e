"""Scripts that nodes of the testbed run: a proof of their host keys, and their preparation.

The request, sent over verified TLS, takes a token to the node. At boot, the node writes its host
keys and their HMAC under that token to a file. An impostor does not know the token (ADR 0011).
"""

from __future__ import annotations

import hashlib
import hmac
import shlex
from pathlib import Path

from gpubed.core import progress, secret
from gpubed.core.paths import ClusterPaths
from gpubed.nodes.ssh import SSH

_KEYS = "/var/tmp/gpubed-host-keys"  # noqa: S108  # startup commands run as the user
_SCRIPT = Path(__file__).with_name("prepare.sh")
_PROGRAM = "/usr/local/sbin/gpubed-testbed"
_UNIT = f"""[Unit]
Description=What the testbed's images leave undone
After=network-online.target remote-fs.target
Wants=network-online.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart={_PROGRAM}

[Install]
WantedBy=multi-user.target
"""
_END = "gpubed-end-of-file"
_LONGEST_S = 300.0
_WARNING = "warning: "  # begins a line of the script's output for the user
_ROOM = "for data: another disk in storage.scratch.devices, or the testbed's mkextrafs on the node"


def token(paths: ClusterPaths) -> str:
    """Return the token of a cluster, made when missing."""
    path = paths.secrets / "virtualwall-proof"
    secret.ensure_token(path)
    return secret.text(path)


def command(paths: ClusterPaths) -> str:
    """Return a node's command at boot: short, and without quotes and variables, for Emulab."""
    digest = f"openssl dgst -sha256 -hmac {token(paths)} -r {_KEYS}"
    return f"cat /etc/ssh/ssh_host_*_key.pub > {_KEYS} && {digest} > {_KEYS}.mac"


SHOW = f"cat {_KEYS} && echo -- && cat {_KEYS}.mac"


def proved(shown: str, token_: str) -> tuple[str, ...] | None:
    """Return the host keys that the output of `SHOW` proves under the token; None if it fails."""
    keys, _, mac = shown.partition("--\n")
    expected = hmac.new(token_.encode(), keys.encode(), hashlib.sha256).hexdigest()
    if not hmac.compare_digest(expected.encode(), "".join(mac.split()[:1]).encode()):
        return None
    return tuple(" ".join(line.split()[:2]) for line in keys.splitlines() if len(line.split()) > 1)


def prepare(ssh: SSH, settings: dict[str, str]) -> None:
    """Install `prepare.sh` as a service, run it now as root, and report its warnings.

    `settings` are its variables; empty ones are left out.
    """
    lines = [f"{name}={shlex.quote(value)}" for name, value in settings.items() if value]
    files = {
        "/etc/gpubed/testbed": "\n".join(lines) + "\n",
        _PROGRAM: script(),
        "/etc/systemd/system/gpubed-testbed.service": _UNIT,
    }
    written = "".join(f"cat > {path} <<'{_END}'\n{text}{_END}\n" for path, text in files.items())
    install = (
        f"set -eu\nmkdir -p /etc/gpubed\n{written}chmod 755 {_PROGRAM}\n{_PROGRAM}\n"
        "systemctl daemon-reload\nsystemctl --quiet enable gpubed-testbed.service\n"
    )
    done = ssh.run("sudo -n sh -s", stdin=install, timeout=_LONGEST_S)
    for line in done.stdout.splitlines():
        if line.startswith(_WARNING):
            warning = line.removeprefix(_WARNING)
            progress.emit("note", message=f"{ssh.node.name}: {warning}; {_ROOM}")


def script() -> str:
    """Return `prepare.sh`."""
    return _SCRIPT.read_text(encoding="utf-8")

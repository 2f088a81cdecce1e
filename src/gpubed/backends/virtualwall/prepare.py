"""Making a node of the testbed like any other: its quirks end here."""

from __future__ import annotations

import shlex
from pathlib import Path

from gpubed.core import progress
from gpubed.nodes.ssh import SSH

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
_WARNING = "warning: "  # how the script begins a line that the user must see
_ROOM = "for data: another disk in storage.scratch.devices, or the testbed's mkextrafs on the node"


def prepare(ssh: SSH, settings: dict[str, str]) -> None:
    """Install what runs at each boot, and run it now; what it warns of is told.

    Args:
        ssh: To the node, as a user who may become root.
        settings: Variables of `prepare.sh`; empty ones are left out.

    Raises:
        CommandFailed: It did not work; says what the node said.
    """
    done = ssh.run("sudo -n sh -s", stdin=_installation(settings), timeout=_LONGEST_S)
    for line in done.stdout.splitlines():
        if line.startswith(_WARNING):
            said = line.removeprefix(_WARNING)
            progress.emit("note", message=f"{ssh.node.name}: {said}; {_ROOM}")


def script() -> str:
    """Return the script that runs on nodes."""
    return _SCRIPT.read_text(encoding="utf-8")


def _installation(settings: dict[str, str]) -> str:
    lines = [f"{name}={shlex.quote(value)}" for name, value in settings.items() if value]
    files = {
        "/etc/gpubed/testbed": "\n".join(lines) + "\n",
        _PROGRAM: script(),
        "/etc/systemd/system/gpubed-testbed.service": _UNIT,
    }
    written = "".join(f"cat > {path} <<'{_END}'\n{text}{_END}\n" for path, text in files.items())
    return (
        f"set -eu\nmkdir -p /etc/gpubed\n{written}chmod 755 {_PROGRAM}\n{_PROGRAM}\n"
        "systemctl daemon-reload\nsystemctl --quiet enable gpubed-testbed.service\n"
    )

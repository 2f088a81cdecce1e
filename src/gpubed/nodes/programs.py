"""Runs a role's program on a host without installing it there."""

from __future__ import annotations

from gpubed.core import reading
from gpubed.core.paths import assets
from gpubed.nodes.ssh import SSH, CommandResult

_AS_ROOT = (
    'if sudo -n true 2> /dev/null; then exec sudo -n python3 - "$@"; else exec python3 - "$@"; fi'
)
_TIMEOUT_S = 180.0  # apt is slow


def run(ssh: SSH, program: str, *words: str, check: bool = True) -> CommandResult:
    """Run a Python program from `roles`, as root if sudo needs no password."""
    text = reading.file(assets() / "roles" / program).text()
    command = " ".join(["sh -c %s sh", *("%s" for _ in words)])
    return ssh.run(command, _AS_ROOT, *words, check=check, stdin=text, timeout=_TIMEOUT_S)

"""Runs a watch as a systemd user unit in `~/.config/systemd/user`, which holds no secret."""

from __future__ import annotations

import getpass
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gpubed.core import files
from gpubed.core.errors import GpubedError, PrerequisiteMissing
from gpubed.core.paths import ClusterPaths
from gpubed.nodes import allocation as allocations
from gpubed.nodes import ssh
from gpubed.nodes.allocation import Node
from gpubed.nodes.ssh import LoginRefused

# Passed on, because the user's systemd does not inherit the shell's variables.
_KEPT = (
    *("PATH", "DOCKER_HOST", "GPUBED_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
    *("OS_CLOUD", "OS_CLIENT_CONFIG_FILE", "OS_CLIENT_SECURE_FILE"),
    *("SSH_AUTH_SOCK", "GPUBED_LOGIN_PASSPHRASE_FILE"),
    *("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
# Passed on, too, unless the URL has a user name or password.
_URLS = (
    *(f"{what}_PROXY" for what in ("HTTP", "HTTPS", "ALL", "NO")),
    *(f"{what}_proxy" for what in ("http", "https", "all", "no")),
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"),
    *("UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_EXTRA_INDEX_URL"),
)
_UNIT = """\
[Unit]
Description=The watch of cluster {name} in {root}

[Service]
WorkingDirectory={root}
{environment}
ExecStart={command}
# The watch itself ends its workers.
KillMode=mixed
SuccessExitStatus=130 143
Restart=on-failure
RestartSec=60
# A wrong command line or specification, which another start would not correct.
RestartPreventExitStatus=2

[Install]
WantedBy=default.target
"""


def file(paths: ClusterPaths) -> Path:
    """Return the unit's path, which is unique to the project."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    project = hashlib.sha256(str(paths.project.root).encode()).hexdigest()[:8]
    return Path(base) / "systemd" / "user" / f"gpubed-watch-{paths.name}-{project}.service"


def text(paths: ClusterPaths, options: Sequence[str]) -> str:
    """Return the unit's content for a watch with these options."""
    program, root = Path(sys.executable).with_name("gpubed"), str(paths.project.root)
    found = str(program) if program.is_file() else shutil.which("gpubed")
    if found is None:
        raise PrerequisiteMissing("gpubed is not on PATH", "install it, as README.md says")
    present = {name: os.environ[name] for name in (*_KEPT, *_URLS) if os.environ.get(name)}
    passed = {name: value for name, value in present.items() if name in _KEPT or "@" not in value}
    variables = {**passed, "GPUBED_ROOT": root}
    # systemd expands no variable in the program's path.
    words = (_quoted(word).replace("$", "$$") for word in ("watch", paths.name, *options))
    return _UNIT.format(
        name=paths.name,
        root=root.replace("%", "%%").replace("\n", " "),
        environment="\n".join(f"Environment={_quoted(f'{k}={v}')}" for k, v in variables.items()),
        command=" ".join([_quoted(found), *words]),
    )


def install(paths: ClusterPaths, options: Sequence[str]) -> Path:
    """Write the unit, start it, and enable it at login; return its path.

    Raises `LoginRefused` if nodes are behind a host whose key no SSH agent holds.
    """
    _systemctl("show", "--property=Version")
    for node in keys_of_agents(paths).values():
        try:
            ssh.greet(node, paths)
        except GpubedError as error:  # the watch handles silent nodes
            if isinstance(error, LoginRefused) and error.on_the_way:
                raise
    path = file(paths)
    files.write_if_changed(path, text(paths, options))
    _systemctl("daemon-reload")
    _systemctl("enable", "--now", path.name)
    _systemctl("restart", path.name)  # a running one may have other options or an older version
    return path


def remove(paths: ClusterPaths) -> Path | None:
    """Stop and remove the unit; return its path, or None if there was no unit."""
    path = file(paths)
    if not path.exists():
        return None
    _systemctl("disable", "--now", path.name)
    path.unlink()
    _systemctl("daemon-reload")
    return path


def keys_of_agents(paths: ClusterPaths) -> dict[str, Node]:
    """Return the login keys that only an SSH agent can use, each with a node that needs it."""
    if not paths.allocation.exists():
        return {}
    nodes = allocations.load(paths.allocation).nodes
    return {key: node for node in nodes for key in ssh.agent_keys(node)}


def lingers() -> bool:
    """Return whether the user's systemd keeps running after logout."""
    shown = _call("loginctl", "show-user", getpass.getuser(), "--property=Linger")
    return shown.stdout.strip() == "Linger=yes"


def _systemctl(*words: str) -> None:
    done = _call("systemctl", "--user", *words)
    if done.returncode:
        raise PrerequisiteMissing(
            f"systemctl --user {' '.join(words)} failed: {done.stderr.strip() or 'no output'}",
            "journalctl --user -e; without systemd: gpubed watch CLUSTER in a terminal; from cron, "
            "with --once",
        )


def _call(*words: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    except FileNotFoundError:
        return subprocess.CompletedProcess(words, 127, "", "there is no systemd on this machine")


def _quoted(word: str) -> str:
    """Quote a word as systemd.syntax(7) specifies."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped.replace("%", "%%")}"'

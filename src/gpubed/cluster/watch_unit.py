"""A watch that the user's own systemd keeps running: a unit in `~/.config/systemd/user`.

It names nothing secret: a testbed that is reached by variables of a shell (a password of
OpenStack's) needs them where systemd finds them, or a file. Keys that have a passphrase it asks of
the SSH agent that is there when it is installed.
"""

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

# Where programs and daemons are found, and files with what is secret; the user's systemd has others
# than a shell.
_KEPT = (
    *("PATH", "DOCKER_HOST", "GPUBED_CACHE", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"),
    *("OS_CLOUD", "OS_CLIENT_CONFIG_FILE", "OS_CLIENT_SECURE_FILE"),
    *("SSH_AUTH_SOCK", "GPUBED_LOGIN_PASSPHRASE_FILE"),
    *("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
# By which ways testbeds and package registries are reached, from nodes that are made anew, too.
_WAYS = (
    *(f"{what}_PROXY" for what in ("HTTP", "HTTPS", "ALL", "NO")),
    *(f"{what}_proxy" for what in ("http", "https", "all", "no")),
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"),
    *("UV_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX", "UV_EXTRA_INDEX_URL"),
)
_UNIT = """\
[Unit]
Description=The watch of cluster {name} in {root}

[Service]
WorkingDirectory={folder}
{environment}
ExecStart={command}
# Those who are at work are told by the watch itself.
KillMode=mixed
SuccessExitStatus=130 143
Restart=on-failure
RestartSec=60
# A mistake of the user's, which another start would only repeat.
RestartPreventExitStatus=2

[Install]
WantedBy=default.target
"""


def file(paths: ClusterPaths) -> Path:
    """Return where the unit of a cluster is; another project's cluster of the name has another."""
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    project = hashlib.sha256(str(paths.project.root).encode()).hexdigest()[:8]
    return Path(base) / "systemd" / "user" / f"gpubed-watch-{paths.name}-{project}.service"


def text(paths: ClusterPaths, options: Sequence[str]) -> str:
    """Return the unit.

    Args:
        options: What the watch is told beside the cluster's name.
    """
    root = str(paths.project.root)
    kept = {name: os.environ[name] for name in (*_KEPT, *_WAYS) if os.environ.get(name)}
    # One that holds a user name or password stays in the shell.
    kept = {name: value for name, value in kept.items() if name in _KEPT or "@" not in value}
    variables = {**kept, "GPUBED_ROOT": root}
    words = ["watch", paths.name, *options]
    return _UNIT.format(
        name=paths.name,
        root=_escaped(root),
        folder=_escaped(root),
        environment="\n".join(f"Environment={_quoted(f'{k}={v}')}" for k, v in variables.items()),
        # In the program's own path, systemd replaces no variable.
        command=" ".join([_quoted(_program()), *(_quoted(w).replace("$", "$$") for w in words)]),
    )


def install(paths: ClusterPaths, options: Sequence[str]) -> Path:
    """Write the unit, start it, and let it start with each login; return where it is.

    One that runs already starts anew: it may have other options, or gpubed another version.

    Raises:
        PrerequisiteMissing: The user has no systemd that answers.
        LoginRefused: Nodes are behind a host whose key no SSH agent holds.
    """
    require(paths)
    for node in keys_of_agents(paths).values():
        _require_way(node, paths)
    path = file(paths)
    was = path.exists()
    files.write_if_changed(path, text(paths, options))
    _systemctl("daemon-reload")
    _systemctl("enable", "--now", path.name)
    if was:
        _systemctl("restart", path.name)
    return path


def remove(paths: ClusterPaths) -> Path | None:
    """Stop the unit and remove it; return where it was, None where there was none.

    Raises:
        PrerequisiteMissing: The user has no systemd that answers.
    """
    path = file(paths)
    if not path.exists():
        return None
    require(paths)
    _systemctl("disable", "--now", path.name)
    path.unlink()
    _systemctl("daemon-reload")
    return path


def require(paths: ClusterPaths) -> None:
    """Refuse to go on where no systemd of the user answers, as in most containers.

    Raises:
        PrerequisiteMissing: None does.
    """
    instead = f"gpubed watch {paths.name} in a terminal; from cron, with --once"
    if shutil.which("systemctl") is None:
        raise PrerequisiteMissing("there is no systemd on this machine", instead)
    done = _call("systemctl", "--user", "show", "--property=Version")
    if done.returncode:
        said = done.stderr.strip() or "no word"
        raise PrerequisiteMissing(f"no systemd of {getpass.getuser()} answers: {said}", instead)


def keys_of_agents(paths: ClusterPaths) -> dict[str, Node]:
    """Return the keys that only an SSH agent can use, each with a node that is behind it."""
    if not paths.allocation.exists():
        return {}
    nodes = allocations.load(paths.allocation).nodes
    return {key: node for node in nodes for key in ssh.agent_keys(node)}


def _require_way(node: Node, paths: ClusterPaths) -> None:
    try:
        ssh.greet(node, paths)
    except LoginRefused as error:
        if error.on_the_way:
            raise
    except GpubedError:
        pass  # to heal it is what the watch is for


def lingers() -> bool:
    """Say whether the user's systemd goes on when nobody is logged in."""
    if shutil.which("loginctl") is None:
        return False
    done = _call("loginctl", "show-user", getpass.getuser(), "--property=Linger")
    return done.stdout.strip() == "Linger=yes"


def _systemctl(*words: str) -> None:
    done = _call("systemctl", "--user", *words)
    if done.returncode:
        listed = " ".join(words)
        raise PrerequisiteMissing(
            f"systemctl --user {listed} failed: {done.stderr.strip() or 'no word'}",
            "see what it says: journalctl --user -e",
        )


def _call(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)


def _program() -> str:
    """Find the script that started this."""
    beside = Path(sys.executable).with_name("gpubed")
    found = str(beside) if beside.is_file() else shutil.which("gpubed")
    if found is None:
        raise PrerequisiteMissing("gpubed is not on PATH", "install it, as README.md says")
    return found


def _escaped(word: str) -> str:
    return word.replace("%", "%%").replace("\n", " ")


def _quoted(word: str) -> str:
    """Quote a word as systemd.syntax(7) has it."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped.replace("%", "%%")}"'

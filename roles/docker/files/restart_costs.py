"""Prints as JSON how the cluster's settings of Docker would affect the containers of other users.

Standard library only. Keys: the settings that `differ`; whether the owner's file `serves`
unchanged; the `root` of a running daemon; the `containers`, other than gpubed's, that a restart
would end or another data folder would hide.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

# Pattern of the names that gpubed-container gives to containers.
_OURS = re.compile(r"gpubed-\d+-\d+-\d+")


def has(found: Any, wanted: Any) -> bool:
    """Return whether a setting has the wanted value; a mapping may have more keys."""
    if isinstance(wanted, dict):
        known = found if isinstance(found, dict) else {}
        return all(has(known.get(key), value) for key, value in wanted.items())
    return (found or None) == (wanted or None)


def differing(settings: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the wanted settings that a file lacks or has otherwise."""
    try:
        found = json.loads(settings.read_text())
    except (OSError, ValueError):
        found = None
    known = found if isinstance(found, dict) else {}
    return {key: value for key, value in wanted.items() if not has(known.get(key), value)}


def is_current(settings: Path, process: Path) -> bool:
    """Return whether the daemon has started since its settings were written."""
    if not process.exists():
        return False
    return not settings.exists() or process.stat().st_mtime > settings.stat().st_mtime


def daemon() -> dict[str, Any]:
    """Return the output of `docker info`; empty if the daemon does not run."""
    # A request to its socket would start a stopped daemon.
    if subprocess.run(
        ["systemctl", "is-active", "--quiet", "docker.service"], check=False
    ).returncode:
        return {}
    done = subprocess.run(
        ["docker", "info", "--format", "{{json .}}"], capture_output=True, text=True, check=False
    )
    return json.loads(done.stdout) if done.returncode == 0 else {}


def others(*, stopped: bool) -> list[str]:
    """Return the names of containers that gpubed did not start, also of `stopped` ones."""
    words = ["docker", "ps", *(["--all"] * stopped), "--format", "{{.Names}}"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return [name for name in done.stdout.split() if not _OURS.fullmatch(name)]


def costs(settings: Path, process: Path, wanted: dict[str, Any]) -> dict[str, Any]:
    """Return the document to print.

    Args:
        settings: Docker's.
        process: The file that the daemon writes at its start.
        wanted: What the settings are to say.
    """
    lacking = differing(settings, wanted)
    told = {
        "differ": lacking,
        "serves": not lacking and settings.exists(),
        "containers": [],
        "root": "",
    }
    if not lacking and is_current(settings, process):
        return told
    if not (info := daemon()):
        return told
    root = info["DockerRootDir"]
    moves = root != wanted["data-root"]
    if not moves and info["LiveRestoreEnabled"]:  # containers outlive a restart
        return told
    return told | {"root": root, "containers": others(stopped=moves)}


if __name__ == "__main__":
    *places, settings_wanted = sys.argv[1:]
    json.dump(costs(*map(Path, places), json.loads(settings_wanted)), sys.stdout)

"""Takes away what `owned.py` lists, as JSON on standard input: where no Ansible runs.

Standard library only. In the order of `tasks/removal.yml`, so that one that was killed goes on.
Packages, users and groups stay: they are the owner's from then on.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def take_away(found: dict[str, Any]) -> None:
    """Remove what is a role's, and give owners back what they had in its place."""
    for name in found["units"]:
        subprocess.run(["systemctl", "disable", "--now", name], check=False)
    for name in found["kept"]:
        remove(Path(name))
        Path(f"{name}.before-gpubed").rename(name)
    for name in found["files"]:
        remove(Path(name))
    for name in found["folders"]:
        if not any(Path(name).iterdir()):
            Path(name).rmdir()
    for name in found["mark"]:
        remove(Path(name))
    gone = [*found["kept"], *found["files"], *found["mark"]]
    if any(name.startswith("/etc/systemd/") for name in gone):
        subprocess.run(["systemctl", "daemon-reload"], check=False)


if __name__ == "__main__":
    if there := json.load(sys.stdin):
        take_away(there)

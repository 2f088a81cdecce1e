"""Takes away what `owned.py` lists, as JSON on standard input: where no Ansible runs.

Standard library only. In the order of `tasks/removal.yml`, so that one that was killed goes on.
What cannot be removed is told and hinders nothing else; then the mark stays, and the code is 1.
Packages, users and groups stay: they are the owner's from then on.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with all that is in it, if it is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def give_back(path: Path) -> None:
    """Remove a file of a role, and put what its owner had there in its place."""
    remove(path)
    Path(f"{path}.before-gpubed").rename(path)


def remove_empty(folder: Path) -> None:
    """Remove a folder that has nothing in it."""
    if not any(folder.iterdir()):
        folder.rmdir()


def take_away(found: dict[str, Any]) -> bool:
    """Remove what is a role's, and give owners back what they had in its place.

    Returns:
        Whether all of it is gone.
    """
    for name in found["units"]:
        subprocess.run(["systemctl", "disable", "--now", name], check=False)
    doing = ((give_back, "kept"), (remove, "files"), (remove_empty, "folders"))
    failed = [name for act, what in doing for name in found[what] if not done(act, name)]
    if not failed:
        failed = [name for name in found["mark"] if not done(remove, name)]
    gone = [*found["kept"], *found["files"], *found["mark"]]
    if any(name.startswith("/etc/systemd/") for name in gone):
        subprocess.run(["systemctl", "daemon-reload"], check=False)
    return not failed


def done(act: Callable[[Path], None], name: str) -> bool:
    """Do something with a file; say why it cannot be done."""
    try:
        act(Path(name))
    except OSError as error:
        print(f"{name} stays: {error.strerror}", file=sys.stderr)  # noqa: T201
        return False
    return True


if __name__ == "__main__":
    if (there := json.load(sys.stdin)) and not take_away(there):
        sys.exit(1)

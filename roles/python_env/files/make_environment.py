"""Makes a Python environment: from a lock, or as one whose packages are another's.

make_environment.py lock LOCK STORE TARGET PYTHON
make_environment.py like BASE TARGET PYTHON

The second writes links instead of gigabytes. BASE must be at the same place on
every machine that uses TARGET; what is installed into TARGET later is in TARGET alone.
Runs with the installer's own Python, which has uv beside it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import fetch_wheels

_UV = Path(sys.executable).with_name("uv")
_SETTINGS = {"UV_NO_PROGRESS": "1", "UV_PYTHON_DOWNLOADS": "never"}
_SCRIPT_HEAD = 512  # bytes: a script names its interpreter in the first two lines


def uv(*arguments: str | Path, **variables: str) -> None:
    """Runs uv."""
    environment = {**os.environ, **_SETTINGS, **variables}
    subprocess.run([_UV, *arguments], env=environment, check=True)


def empty(target: Path, python: str) -> None:
    """Makes an environment without packages; what an earlier attempt left there is gone."""
    uv("venv", "--quiet", "--clear", "--python", python, target)


def from_lock(lock: Path, store: Path, target: Path, python: str) -> None:
    """Installs what a lock names, from a store of wheels that gets what it lacks."""
    empty(target, python)
    wheels = target / ".wheels"
    kept = target / "requirements.txt"
    shutil.copyfile(lock, kept)
    fetch_wheels.fetch(kept, store, wheels)
    offline = ["--offline", "--no-cache", "--no-index", "--find-links", wheels]
    # It unpacks there: gigabytes, and /tmp may be memory.
    uv(
        *("pip", "sync", "--quiet", "--require-hashes", *offline),
        *("--python", target / "bin" / "python", kept),
        TMPDIR=str(wheels),
    )
    shutil.rmtree(wheels)


def like(base: Path, target: Path, python: str) -> None:
    """Makes an environment whose packages are links to another's.

    Packages are linked as a whole. What several of them may write to are folders of its own, with
    links in them: namespaces; and what is known of a package, since uv looks for folders there.
    What is beside the packages is small and copied: JupyterLab serves no file that is a link, and
    scripts name their environment.
    """
    empty(target, python)
    (target / ".links").touch()
    for here, folders, files in os.walk(base):
        place = target / Path(here).relative_to(base)
        whole = [name for name in folders if Path(here, name, "__init__.py").exists()]
        folders[:] = [name for name in folders if name not in whole]
        for name in folders:
            (place / name).mkdir(exist_ok=True)
        for name in (*files, *whole):
            if os.path.lexists(place / name) or name.startswith((".complete", ".lock")):
                continue
            if "site-packages" in place.parts:
                (place / name).symlink_to(Path(here, name))
            else:
                _copy(Path(here, name), place / name, base, target)


def _copy(file: Path, copy: Path, base: Path, target: Path) -> None:
    """Copies a file; a script that names its environment names the new one."""
    shutil.copy(file, copy, follow_symlinks=False)
    if copy.parent == target / "bin" and not copy.is_symlink():
        content = copy.read_bytes()
        if content.startswith(b"#!") and os.fsencode(base) in content[:_SCRIPT_HEAD]:
            copy.write_bytes(content.replace(os.fsencode(base), os.fsencode(target)))


def main() -> None:
    """Makes it."""
    way, *paths, python = sys.argv[1:]
    {"lock": from_lock, "like": like}[way](*map(Path, paths), python)


if __name__ == "__main__":
    main()

"""Lists which of the things that a role owns are there and are its own, as JSON. Changes nothing.

Standard library only. One question for all roles:

- Where a role has a mark, nothing is its own without it. A mark that names another cluster is of
  a time before: what that one set up is the owner's since. One of a former version names none.
- Of a file that an owner may have under the same name, the text or the link tells (`says`). A
  unit whose file is not the role's is not the role's either.
- What an owner had under the name of a file and a role kept (`tasks/keep.yml`) is to be given back,
  also where a removal was killed after it had taken the role's file.
- A folder goes with all that is in it only where the role says that it has nothing of an owner's
  (`tree`): what an owner made under the name of a file stays.
- An account or a group that has another number than the role gave it is somebody else's by now.
- Packages are those that a note says the role brought. A former version noted nothing: then
  those that it is known to have brought (`former`). Some may be of use to others by now (`kept`):
  these stay, and with them what they need.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

_CLUSTER = re.compile(r"^(?:# )?cluster:? (\S+)$", re.MULTILINE)


def asked(*words: str) -> str:
    """Return what a command prints; empty when it is not there."""
    try:
        return subprocess.run(words, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return ""


def is_there(path: Path) -> bool:
    """Return whether something has this name, be it a link that leads to nothing."""
    return path.is_symlink() or path.exists()


def text_of(path: Path) -> str:
    """Return what tells whose a file is: where a link leads, or what a file holds."""
    if path.is_symlink():
        return str(path.readlink())
    return path.read_text(errors="replace") if path.is_file() else ""


def is_marked(mark: str, cluster: str) -> bool:
    """Return whether a mark is there, and of this cluster if it names one."""
    if not is_there(Path(mark)):
        return False
    named = _CLUSTER.findall(text_of(Path(mark)))
    return not named or cluster in named


def files(owned: list[Any]) -> tuple[list[str], list[str], set[str]]:
    """Return the files that are the role's, those in whose place an owner has his back, and others.

    Of the others, who are somebody else's, the names.
    """
    ours, kept, others = [], [], set()
    for entry in owned:
        told = {"path": entry} if isinstance(entry, str) else entry
        path, says = told["path"], told.get("says", "")
        is_kept = is_there(Path(f"{path}.before-gpubed"))
        if not is_there(Path(path)):
            kept += [path] if is_kept else []
            continue
        is_folder = Path(path).is_dir() and not Path(path).is_symlink()
        is_said = re.search(says, text_of(Path(path)), re.MULTILINE)
        if is_said and is_folder == told.get("tree", False):
            (kept if is_kept else ours).append(path)
        else:
            others.add(Path(path).name)
    return ours, kept, others


def folders(owned: list[str], going: list[str], *, marked: bool) -> list[str]:
    """Return the folders in which nothing is but what goes: into others an owner put something.

    One that is empty is the role's only where a mark says that the role was here.
    """
    ours: list[str] = []
    for folder in sorted(owned, key=len, reverse=True):
        path, gone = Path(folder), {*going, *ours}
        if path.is_dir() and not path.is_symlink():
            inner = [str(name) for name in path.iterdir()]
            ours += [folder] if (inner or marked) and set(inner) <= gone else []
    return ours


def units(owned: list[str], others: set[str]) -> list[str]:
    """Return the units that systemd knows, but none of another owner."""
    ours = [name for name in owned if name not in others]
    if not ours:
        return []
    words = ("systemctl", "show", "--property=LoadState,ActiveState", "--", *ours)
    told = [dict(re.findall(r"(\w+)=(.*)", part)) for part in asked(*words).split("\n\n")]
    return [
        name
        for name, state in zip(ours, told, strict=False)
        if state.get("LoadState") not in ("not-found", None) or state.get("ActiveState") == "active"
    ]


def taken_along(*names: str) -> set[str]:
    """Return what apt would remove with packages, themselves included."""
    words = ("apt-get", "--simulate", "--allow-change-held-packages", "remove", *names)
    return set(re.findall(r"(?m)^(?:Remv|Purg) (\S+)", asked(*words)))


def packages(owned: dict[str, Any]) -> list[str]:
    """Return the packages that the role brought and nothing else needs."""
    brought = set(owned.get("former", []))
    if (note := Path(owned.get("noted", ""))).is_file():
        brought = set(note.read_text().split())
    brought -= set(owned.get("kept", []))
    if not brought:
        return []
    words = ("dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *brought)
    installed = sorted(re.findall(r"(?m)^(\S+) installed$", asked(*words)))
    if not installed or taken_along(*installed) <= brought:
        return installed
    return [name for name in installed if taken_along(name) <= brought]


def known(owned: list[Any], database: str) -> list[str]:
    """Return the accounts or groups that there are, with their number where it is said."""
    ours = []
    for entry in owned:
        name, number = (entry, "") if isinstance(entry, str) else (entry["name"], entry["number"])
        found = asked("getent", database, name).split(":")
        if found[1:] and str(number) in ("", found[2]):
            ours.append(name)
    return ours


def owned(owns: dict[str, Any], cluster: str) -> dict[str, Any]:
    """Return what is to be removed; empty when nothing is.

    Args:
        owns: What the role says that it owns: `mark`, `units`, `packages`, `files`, `folders`,
            `users` and `groups`, each of which may be left out.
        cluster: The UUID of the cluster.
    """
    mark = owns.get("mark")
    if mark and not is_marked(mark, cluster):
        return {}
    ours, kept, others = files(owns.get("files", []))
    found = {
        "units": units(owns.get("units", []), others),
        "packages": packages(owns.get("packages", {})),
        "kept": kept,
        "files": ours,
        "folders": folders(owns.get("folders", []), ours, marked=bool(mark)),
        "users": known(owns.get("users", []), "passwd"),
        "groups": known(owns.get("groups", []), "group"),
        "mark": [mark] if mark else [],
    }
    return found if any(found.values()) else {}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(owned(json.loads(sys.argv[1]), sys.argv[2])))

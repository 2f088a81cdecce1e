"""Says whose a node's scratch folder is, as JSON. Standard library only; changes nothing.

What the role made is in its record. Without one, or where another cluster wrote it, which let
this host go, a folder that holds anything and a mount are the owner's. Earlier versions left a
mark in the folder instead: what the role made then and what it took is not told apart, so that
only our own disks and files count as ours.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

_FORMER_MARK, _FORMER_WORDS = ".gpubed", "Made by gpubed"
# What a record says at least, and what it is.
_SAYS = {"path": str, "label": str, "array": str, "disks": list, "made": bool}


def said(*words: str) -> list[str]:
    """Return the lines that a command prints; none when it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


def source_of(path: str) -> str:
    """Return what is mounted at a path; empty when nothing is."""
    return "".join(said("findmnt", "--noheadings", "--output", "SOURCE", "--mountpoint", path)[-1:])


def is_ours(source: str, label: str) -> bool:
    """Return whether what is mounted has the label that the role gives."""
    words = ("--probe", "--output", "value", "--match-tag", "LABEL", source)
    return said("blkid", *words) == [label]


def disks_of(source: str, label: str) -> list[str]:
    """Return the disks below a mounted file system; none when it is not ours."""
    if not is_ours(source, label):
        return []
    words = ("--noheadings", "--paths", "--list", "--inverse", "--output", "NAME,TYPE")
    rows = [line.split() for line in said("lsblk", *words, source)]
    return sorted(row[0] for row in rows if row[1:] == ["disk"])


def marked(path: Path) -> bool:
    """Return whether an earlier version took this folder."""
    mark = path / _FORMER_MARK
    return mark.is_file() and mark.read_text(errors="replace").startswith(_FORMER_WORDS)


def objection(path: Path, source: str) -> str:
    """Return why a folder without a record is the owner's; empty when it may be taken."""
    if source:
        return f"{source} is mounted there"
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        return "it is a link or a file"
    return "it holds files" if path.is_dir() and any(path.iterdir()) else ""


def change(found: dict[str, Any], path: Path, source: str) -> str:
    """Return why what a record names is not what is there now; empty when it is."""
    if found["path"] != str(path):
        return f"gpubed's scratch of this node is at {found['path']}"
    # An earlier version may have taken a mount of the owner's, which goes on to be used.
    taken = not found["made"] and not found["was"]
    ours = not source or taken or (found["disks"] and is_ours(source, found["label"]))
    return "" if ours else f"{source} is mounted there, which gpubed did not make"


def access(path: Path) -> dict[str, Any] | None:
    """Return who may use a folder, to give it back like that; None when it is not there."""
    if not path.is_dir():
        return None
    found = path.stat()
    return {"owner": found.st_uid, "group": found.st_gid, "mode": found.st_mode & 0o7777}


def noted(record: Path) -> dict[str, Any] | None:
    """Return what a record says; None when there is none. End where it cannot be read."""
    try:
        text = record.read_text()
    except FileNotFoundError:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    whole = isinstance(found, dict) and "was" in found
    if not (whole and all(isinstance(found.get(key), kind) for key, kind in _SAYS.items())):
        sys.exit(
            f"{record} is not whole, so that nobody knows what gpubed made. Nothing was touched. "
            "Look what of it is there, take that away by hand (umount, wipefs), then that file"
        )
    return found


def labelled(record: dict[str, Any]) -> list[str]:
    """Return what of a record carries its label: the array, or the first such disk."""
    there = [disk for disk in (record["array"], *record["disks"]) if Path(disk).exists()]
    return [disk for disk in there if is_ours(disk, record["label"])][:1]


def given_up(record: dict[str, Any], path: Path, source: str) -> str:
    """Return why the scratch of a cluster that let this host go may not be taken."""
    if disks := labelled(record):
        return (
            f"{disks[0]} was the scratch of a cluster that is gone, and is the owner's since "
            f"(if nobody needs it: umount {record['path']}; wipefs --all {disks[0]})"
        )
    empty = path / "datasets"
    left = sorted(path.iterdir()) if path.is_dir() and not path.is_symlink() else []
    if not source and left == [empty] and empty.is_dir() and not any(empty.iterdir()):
        return ""
    why = objection(path, source)
    return why and f"{why}, and what a cluster that is gone left there is the owner's since"


def whose(path: Path, record: Path, label: str, array: str, uuid: str) -> dict[str, Any]:
    """Return the record of a scratch folder, and why it is refused.

    Args:
        path: The folder that is asked for.
        record: What the role noted before it made anything; need not be there.
        label: Of the file systems that the role makes.
        array: Of several disks.
        uuid: The cluster's. A record without one is of a former version and counts as ours.
    """
    source = source_of(str(path))
    fresh = {"path": str(path), "label": label, "array": array, "disks": [], "uuid": uuid}
    new = {**fresh, "made": not path.exists(), "was": access(path)}
    told = {"ours": False, "mounted": bool(source), "stranded": []}
    found = noted(record)
    if found and found.get("uuid", uuid) == uuid:
        refused = change(found, path, source)
        waits = [] if source else labelled(found)
        known = {"record": found | {"uuid": uuid}, "refused": refused, "stranded": waits}
        return told | known | {"ours": True}
    if not found and marked(path):
        taken = {**fresh, "disks": disks_of(source, label), "made": False, "was": None}
        return told | {"record": taken, "ours": True, "refused": ""}
    refused = given_up(found, path, source) if found else objection(path, source)
    return told | {"record": None if refused else new, "refused": refused}


if __name__ == "__main__":
    where, written, *names = sys.argv[1:]
    sys.stdout.write(json.dumps(whose(Path(where), Path(written), *names)))

"""Prints as JSON whether a node's scratch folder is gpubed's or the owner's.

Standard library only; changes nothing. The role records what it creates. Without a record, or if
the cluster of the record has released this host, a folder with content, a mount and a planned
mount are the owner's. Former versions left a mark in the folder instead, which does not tell what
they created and what they used: only our own disks and files count as ours then.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FORMER_MARK, _FORMER_WORDS = ".gpubed", "Made by gpubed"
# Required keys of a record, and their types.
_SAYS = {"path": str, "label": str, "array": str, "disks": list, "made": bool}
# Our block in fstab; without its end, its extent is unknown.
_BLOCK = re.compile(
    r"^# BEGIN gpubed role scratch\n(?:(?!# BEGIN gpubed role scratch$).*\n)*?"
    r"# END gpubed role scratch$",
    re.MULTILINE,
)
# Folder of the owner's units; units by fstab's lines are elsewhere.
_UNITS = Path("/etc/systemd/system")
_NOTHING_FOUND = 2  # blkid's answer when it sees no signature


def said(*words: str) -> list[str]:
    """Return the lines of a command's output; none if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    return done.stdout.split("\n")[:-1] if done.returncode == 0 else []


def source_of(path: str) -> str:
    """Return the source of the mount at a path; empty without a mount."""
    return "".join(said("findmnt", "--noheadings", "--output", "SOURCE", "--mountpoint", path)[-1:])


def is_ours(source: str, label: str) -> bool:
    """Return whether a mounted file system has the role's label."""
    words = ("--probe", "--output", "value", "--match-tag", "LABEL", source)
    return said("blkid", *words) == [label]


def disks_of(source: str) -> list[str]:
    """Return the disks below a file system or an array."""
    words = ("--noheadings", "--paths", "--list", "--inverse", "--output", "NAME,TYPE")
    rows = [line.split() for line in said("lsblk", *words, source)]
    return sorted(row[0] for row in rows if row[1:] == ["disk"])


def unfinished(record: dict[str, Any]) -> bool:
    """Return whether the record's disks are our array, still without a file system."""
    array = record["array"]
    if not record["disks"] or not Path(array).exists():
        return False
    words = ["blkid", "--probe", "--output", "value", "--match-tag", "TYPE", array]
    if subprocess.run(words, capture_output=True, check=False).returncode != _NOTHING_FOUND:
        return False
    ours = {Path(disk).resolve() for disk in record["disks"]}
    return {Path(disk).resolve() for disk in disks_of(array)} == ours


def marked(path: Path) -> bool:
    """Return whether a former version used this folder."""
    mark = path / _FORMER_MARK
    return mark.is_file() and mark.read_text(errors="replace").startswith(_FORMER_WORDS)


def intended(fstab: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield the owner's planned mounts: source, path, and the file that plans it."""
    try:
        text = fstab.read_text(errors="surrogateescape")
    except FileNotFoundError:
        text = ""
    for line in _BLOCK.sub("", text).splitlines():
        words = line.split()
        if len(words) > 1 and not words[0].startswith("#"):
            place = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), words[1])
            yield words[0], Path(place), str(fstab)
    for unit in sorted(_UNITS.glob("*.mount")):
        settings = dict(re.findall(r"^(What|Where)=(.+)$", unit.read_text(), re.MULTILINE))
        if "Where" in settings:
            yield settings.get("What", "something"), Path(settings["Where"]), str(unit)


def promised(path: Path, fstab: Path) -> str:
    """Return why a folder belongs to another file system, mounted or not; empty if it does not.

    One that comes above it, and is not there now, would hide what is made here.
    """
    places = {path, path.parent.resolve() / path.name}
    above = {parent for place in places for parent in place.parents} - {Path("/")}
    for source, place, said in intended(fstab):
        if place in places:
            return f"{said} says that {source} is mounted there"
        if place in above and not source_of(str(place)):
            return f"{said} says that {source} is mounted at {place}, and it is not now"
    return ""


def objection(path: Path, source: str) -> str:
    """Return why a folder without a record is the owner's; empty if it may be used."""
    if source:
        return f"{source} is mounted there"
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        return "it is a link or a file"
    return "it holds files" if path.is_dir() and any(path.iterdir()) else ""


def change(found: dict[str, Any], path: Path, source: str, fstab: Path) -> str:
    """Return how the present state differs from a record; empty if it does not."""
    if found["path"] != str(path):
        return f"gpubed's scratch of this node is at {found['path']}"
    # A mount of the owner that a former version used may be used further.
    taken = not found["made"] and not found["was"]
    ours = not source or taken or (found["disks"] and is_ours(source, found["label"]))
    if not ours:
        return f"{source} is mounted there, which gpubed did not make"
    if path.is_symlink() and not taken:
        return "it is a link by now, which gpubed did not make"
    return "" if taken and source else promised(path, fstab)


def access(path: Path) -> dict[str, Any] | None:
    """Return owner and mode of a folder, to restore them later; None if it does not exist."""
    if not path.is_dir():
        return None
    found = path.stat()
    return {"owner": found.st_uid, "group": found.st_gid, "mode": found.st_mode & 0o7777}


def noted(record: Path) -> dict[str, Any] | None:
    """Return a record; None if there is none. Exit if it cannot be read."""
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


def fills(record: dict[str, Any], path: Path) -> bool:
    """Return whether our folder has content, which disks mounted over it would hide."""
    return not record["disks"] and path.is_dir() and any(path.iterdir())


def labelled(record: dict[str, Any]) -> list[str]:
    """Return the device with a record's label: the array, or the first such disk."""
    there = [disk for disk in (record["array"], *record["disks"]) if Path(disk).exists()]
    return [disk for disk in there if is_ours(disk, record["label"])][:1]


def given_up(record: dict[str, Any], path: Path, source: str) -> str:
    """Return why the scratch of a cluster that released this host may not be used."""
    if disks := labelled(record):
        return (
            f"{disks[0]} was a cluster's scratch, and is the owner's since it let this host go "
            f"(if nobody needs it: umount {record['path']}; wipefs --all {disks[0]})"
        )
    empty = path / "datasets"
    left = sorted(path.iterdir()) if path.is_dir() and not path.is_symlink() else []
    if not source and left == [empty] and empty.is_dir() and not any(empty.iterdir()):
        return ""
    why = objection(path, source)
    return why and f"{why}, and what a cluster left there is the owner's since it let this host go"


def whose(
    path: Path, record: Path, label: str, array: str, uuid: str, fstab: Path
) -> dict[str, Any]:
    """Return the record of a scratch folder, and why it is refused.

    Args:
        path: The folder that is asked for.
        record: What the role noted before it made anything; need not be there.
        label: Of the file systems that the role makes.
        array: Of several disks.
        uuid: The cluster's. A record without one is of a former version and counts as ours.
        fstab: What is mounted at boot.
    """
    source = source_of(str(path))
    fresh = {"path": str(path), "label": label, "array": array, "disks": [], "uuid": uuid}
    new = {**fresh, "made": not path.exists(), "was": access(path)}
    told = {"ours": False, "mounted": bool(source), "stranded": []}
    told |= {"unfinished": False, "folder": False}
    found = noted(record)
    if found and found.get("uuid", uuid) == uuid and not found.get("given_up"):
        refused = change(found, path, source, fstab)
        waits = [] if source else labelled(found)
        known = {"record": found | {"uuid": uuid}, "refused": refused, "stranded": waits}
        begun = not source and not waits and unfinished(found)
        return told | known | {"ours": True, "unfinished": begun, "folder": fills(found, path)}
    if not found and marked(path):
        disks = disks_of(source) if is_ours(source, label) else []
        taken = {**fresh, "disks": disks, "made": False, "was": None}
        refused = change(taken, path, source, fstab)
        known = {"record": taken, "refused": refused, "folder": fills(taken, path)}
        return told | known | {"ours": True}
    refused = given_up(found, path, source) if found else objection(path, source)
    refused = refused or promised(path, fstab)
    return told | {"record": None if refused else new, "refused": refused}


if __name__ == "__main__":
    where, written, *names, table = sys.argv[1:]
    sys.stdout.write(json.dumps(whose(Path(where), Path(written), *names, Path(table))))

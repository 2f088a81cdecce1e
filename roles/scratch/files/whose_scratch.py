"""Says whose a node's scratch folder is, as JSON. Standard library only; changes nothing.

What the role made is in its record. Without one, or where the cluster that wrote it let this host
go, a folder that holds anything and a mount are the owner's, and so is a place where the owner
means something to be mounted. Earlier versions left a
mark in the folder instead: what the role made then and what it took is not told apart, so that
only our own disks and files count as ours.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_FORMER_MARK, _FORMER_WORDS = ".gpubed", "Made by gpubed"
# What a record says at least, and what it is.
_SAYS = {"path": str, "label": str, "array": str, "disks": list, "made": bool}
# Ours in fstab, as a whole or not at all: without its end, nobody knows what of the rest is ours.
_BLOCK = re.compile(
    r"^# BEGIN gpubed role scratch\n(?:(?!# BEGIN gpubed role scratch$).*\n)*?"
    r"# END gpubed role scratch$",
    re.MULTILINE,
)
# Where an owner's own units are; those of fstab's lines are elsewhere.
_UNITS = Path("/etc/systemd/system")
_NOTHING_FOUND = 2  # blkid's answer when it sees no signature


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


def disks_of(source: str) -> list[str]:
    """Return the disks below a file system or an array."""
    words = ("--noheadings", "--paths", "--list", "--inverse", "--output", "NAME,TYPE")
    rows = [line.split() for line in said("lsblk", *words, source)]
    return sorted(row[0] for row in rows if row[1:] == ["disk"])


def unfinished(record: dict[str, Any]) -> bool:
    """Return whether the record's disks are an array of ours that has no file system yet."""
    array = record["array"]
    if not record["disks"] or not Path(array).exists():
        return False
    words = ["blkid", "--probe", "--output", "value", "--match-tag", "TYPE", array]
    if subprocess.run(words, capture_output=True, check=False).returncode != _NOTHING_FOUND:
        return False
    ours = {Path(disk).resolve() for disk in record["disks"]}
    return {Path(disk).resolve() for disk in disks_of(array)} == ours


def marked(path: Path) -> bool:
    """Return whether an earlier version took this folder."""
    mark = path / _FORMER_MARK
    return mark.is_file() and mark.read_text(errors="replace").startswith(_FORMER_WORDS)


def intended(fstab: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield what the owner means to be mounted: what, where, and what says so."""
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
    """Return why a folder is another file system's, mounted or not; empty when it is none's.

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
    """Return why a folder without a record is the owner's; empty when it may be taken."""
    if source:
        return f"{source} is mounted there"
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        return "it is a link or a file"
    return "it holds files" if path.is_dir() and any(path.iterdir()) else ""


def change(found: dict[str, Any], path: Path, source: str, fstab: Path) -> str:
    """Return why what a record names is not what is there now; empty when it is."""
    if found["path"] != str(path):
        return f"gpubed's scratch of this node is at {found['path']}"
    # An earlier version may have taken a mount of the owner's, which goes on to be used.
    taken = not found["made"] and not found["was"]
    ours = not source or taken or (found["disks"] and is_ours(source, found["label"]))
    if not ours:
        return f"{source} is mounted there, which gpubed did not make"
    if path.is_symlink() and not taken:
        return "it is a link by now, which gpubed did not make"
    return "" if taken and source else promised(path, fstab)


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


def fills(record: dict[str, Any], path: Path) -> bool:
    """Return whether ours is a folder that holds something, which disks over it would hide."""
    return not record["disks"] and path.is_dir() and any(path.iterdir())


def labelled(record: dict[str, Any]) -> list[str]:
    """Return what of a record carries its label: the array, or the first such disk."""
    there = [disk for disk in (record["array"], *record["disks"]) if Path(disk).exists()]
    return [disk for disk in there if is_ours(disk, record["label"])][:1]


def given_up(record: dict[str, Any], path: Path, source: str) -> str:
    """Return why the scratch of a cluster that let this host go may not be taken."""
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

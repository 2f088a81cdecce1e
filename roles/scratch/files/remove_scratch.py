"""Removes what role scratch created by its record, and nothing else. Standard library only.

The record is removed last, so that an interrupted removal can be repeated.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

_MOUNTS = Path("/proc/self/mountinfo")


def asked(*words: str) -> str:
    """Return the output of a command; empty if it fails."""
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def do(*words: str) -> None:
    """Run a command; exit with its message if it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip()}")


def label_of(device: str) -> str:
    """Return the label of a device by blkid."""
    return asked("blkid", "--probe", "--output", "value", "--match-tag", "LABEL", device)


def real(path: Path) -> Path:
    """Return a path with its parents resolved; the path itself may be a link."""
    return path.parent.resolve() / path.name


def mounts(path: Path) -> list[Path]:
    """Return all mount points at or below a path, including those on the same file system."""
    above = real(path)
    lines = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    # The kernel writes a space as \040.
    places = [
        Path(re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), line.split()[4]))
        for line in lines
    ]
    return [place for place in places if place == above or above in place.parents]


def going(record: dict[str, Any]) -> list[Path]:
    """Return the folders to remove: our folder, or our folders in an owner's one."""
    path = Path(record["path"])
    if record["made"]:
        return [path]
    return [] if record["disks"] else [path / "datasets", path / ".gpubed"]


def keep(places: list[Path]) -> None:
    """Exit if something is mounted below, as a removal might empty its source.

    That of a bind mount of the same file system is none that `rm --one-file-system` passes by.
    """
    if places:
        listed = ", ".join(map(str, places))
        sys.exit(f"mounted below it is what gpubed did not make: {listed}. Nothing was removed")


def unmount(record: dict[str, Any]) -> None:
    """Unmount our file system; exit if another one is mounted in the folder to remove."""
    path = record["path"]
    source = asked("findmnt", "--noheadings", "--output", "SOURCE", "--mountpoint", path)
    if source and record["disks"] and label_of(source) == record["label"]:
        do("umount", path)
        source = asked("findmnt", "--noheadings", "--output", "SOURCE", "--mountpoint", path)
    # Former versions may have used a mount of the owner.
    if source and (record["made"] or record["was"]):
        sys.exit(f"at {path} {source} is mounted, which gpubed did not make")


def free(record: dict[str, Any]) -> None:
    """Wipe the disks of the record that still have our label, or are part of our array."""
    if Path(record["array"]).exists():
        do("mdadm", "--stop", record["array"])
    ours = {record["label"], Path(record["array"]).name}
    for disk in record["disks"]:
        # mdadm puts a host's name before its arrays'.
        if label_of(disk).rpartition(":")[2] in ours:
            do("wipefs", "--all", "--quiet", disk)


def clear(record: dict[str, Any]) -> None:
    """Remove our folder, or our folders in a folder of the owner."""
    path = Path(record["path"])
    if places := going(record):
        do("rm", "-rf", "--one-file-system", "--", *map(str, places))
    if record["made"] or not path.is_dir():
        return
    if was := record["was"]:
        os.chown(path, was["owner"], was["group"])
        path.chmod(was["mode"])
    elif not any(path.iterdir()) and not path.is_mount():
        path.rmdir()


def remove(noted: Path) -> None:
    """Remove everything in a record, and then the record."""
    record = json.loads(noted.read_text())
    if (path := Path(record["path"])).is_symlink():
        # Its target may have a folder `datasets` that we did not create.
        sys.exit(f"{path} is a link by now, which gpubed did not make (rm {path} takes it alone)")
    places, at = going(record), real(path)
    # Our own mount, at the folder itself, is unmounted next.
    keep([place for each in places for place in mounts(each) if place != at])
    unmount(record)
    keep([place for each in places for place in mounts(each)])
    if record["disks"]:
        free(record)
    clear(record)
    noted.unlink()


if __name__ == "__main__":
    remove(Path(sys.argv[1]))

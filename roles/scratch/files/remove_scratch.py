"""Removes what the record says that role scratch made, and nothing else. Standard library only.

The record goes last: what was interrupted is gone on with.
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
    """Return what a command prints; empty when it fails."""
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()


def do(*words: str) -> None:
    """Run a command; end in its own words when it fails."""
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: {done.stderr.strip()}")


def label_of(device: str) -> str:
    """Return the label that blkid sees on a device."""
    return asked("blkid", "--probe", "--output", "value", "--match-tag", "LABEL", device)


def real(path: Path) -> Path:
    """Return a path as the kernel names it; what it names itself may be a link."""
    return path.parent.resolve() / path.name


def mounts(path: Path) -> list[Path]:
    """Return every mount point at or below a path, those on the same file system, too."""
    above = real(path)
    lines = _MOUNTS.read_text(errors="surrogateescape").splitlines()
    # The kernel writes a space as \040.
    places = [
        Path(re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), line.split()[4]))
        for line in lines
    ]
    return [place for place in places if place == above or above in place.parents]


def going(record: dict[str, Any]) -> list[Path]:
    """Return what goes with all that is in it: the folder, or what we put into an owner's."""
    path = Path(record["path"])
    if record["made"]:
        return [path]
    return [] if record["disks"] else [path / "datasets", path / ".gpubed"]


def keep(places: list[Path]) -> None:
    """End where something is mounted, of which a removal might empty the source.

    That of a bind mount of the same file system is none that `rm --one-file-system` passes by.
    """
    if places:
        listed = ", ".join(map(str, places))
        sys.exit(f"mounted below it is what gpubed did not make: {listed}. Nothing was removed")


def unmount(record: dict[str, Any]) -> None:
    """Unmount our file system; end where another one is in the folder that would go."""
    path = record["path"]
    source = asked("findmnt", "--noheadings", "--output", "SOURCE", "--mountpoint", path)
    if source and record["disks"] and label_of(source) == record["label"]:
        do("umount", path)
        source = asked("findmnt", "--noheadings", "--output", "SOURCE", "--mountpoint", path)
    # A former version may have taken a mount of the owner's; of all others we know better.
    if source and (record["made"] or record["was"]):
        sys.exit(f"at {path} {source} is mounted, which gpubed did not make")


def free(record: dict[str, Any]) -> None:
    """Wipe the disks of the record that still carry our label, or are of our array."""
    if Path(record["array"]).exists():
        do("mdadm", "--stop", record["array"])
    ours = {record["label"], Path(record["array"]).name}
    for disk in record["disks"]:
        # mdadm puts a host's name before its arrays'.
        if label_of(disk).rpartition(":")[2] in ours:
            do("wipefs", "--all", "--quiet", disk)


def clear(record: dict[str, Any]) -> None:
    """Remove the folder that we made; of one that was there before, what we put into it."""
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
    """Remove all that a record names, and then the record."""
    record = json.loads(noted.read_text())
    if (path := Path(record["path"])).is_symlink():
        # What it leads to may hold a `datasets` that we never made.
        sys.exit(f"{path} is a link by now, which gpubed did not make (rm {path} takes it alone)")
    places, at = going(record), real(path)
    # Ours may be at the folder itself, and is unmounted next.
    keep([place for each in places for place in mounts(each) if place != at])
    unmount(record)
    keep([place for each in places for place in mounts(each)])
    if record["disks"]:
        free(record)
    clear(record)
    noted.unlink()


if __name__ == "__main__":
    remove(Path(sys.argv[1]))

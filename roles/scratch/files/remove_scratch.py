"""Removes what the record says that role scratch made, and nothing else. Standard library only.

The record goes last: what was interrupted is gone on with.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any


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
    if record["made"]:
        do("rm", "-rf", "--one-file-system", "--", str(path))
        return
    if not record["disks"]:
        do("rm", "-rf", "--one-file-system", "--", str(path / "datasets"), str(path / ".gpubed"))
    if not path.is_dir():
        return
    if was := record["was"]:
        os.chown(path, was["owner"], was["group"])
        path.chmod(was["mode"])
    elif not any(path.iterdir()) and not path.is_mount():
        path.rmdir()


def remove(noted: Path) -> None:
    """Remove all that a record names, and then the record."""
    record = json.loads(noted.read_text())
    unmount(record)
    if record["disks"]:
        free(record)
    clear(record)
    noted.unlink()


if __name__ == "__main__":
    remove(Path(sys.argv[1]))

"""Prints as JSON the disks that role scratch can use on a node. Standard library only.

A disk is free when nothing is known to be on it (no partition, no signature) and the
kernel lets it be opened exclusively: mounted disks and members of arrays refuse that.

A disk may outlive its node, as a cloud's data volume does. The node that takes its place has no
record of it; one that was named is kept with what is on it where its file system has the UUID
that this cluster gives to scratch of a node of this name.
"""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_BY_ID = Path("/dev/disk/by-id")
_NOTHING_FOUND = 2  # blkid's answer when it sees no signature


def listed() -> list[dict[str, Any]]:
    """Return lsblk's tree of block devices."""
    done = subprocess.run(
        ["lsblk", "--json", "--paths", "--output", "NAME,TYPE,TRAN,RO,SIZE"],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)["blockdevices"]


def signature(disk: str) -> str:
    """Return the signatures that blkid finds on a disk; empty if there are none."""
    done = subprocess.run(
        ["blkid", "--probe", "--output", "value", "--match-tag", "TYPE", disk],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == _NOTHING_FOUND:
        return ""
    return done.stdout.strip() or "a partition table"


def tag(disk: str, name: str) -> str:
    """Return the UUID or LABEL of a disk's file system by blkid; empty if it has none."""
    done = subprocess.run(
        ["blkid", "--probe", "--output", "value", "--match-tag", name, disk],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def is_own(device: dict[str, Any], uuid: str) -> bool:
    """Return whether an unused disk has the file system of this node's scratch."""
    disk, below = device["name"], device.get("children")
    usable = device["type"] == "disk" and device["ro"] not in (True, "1") and not below
    return usable and not exclusive(disk) and tag(disk, "UUID") == uuid


def exclusive(disk: str) -> str:
    """Return why the kernel refuses exclusive access to a disk; empty if it does not."""
    try:
        os.close(os.open(disk, os.O_RDONLY | os.O_EXCL))
    except OSError as error:
        return "in use" if error.errno == errno.EBUSY else os.strerror(error.errno)
    return ""


def occupied(device: dict[str, Any]) -> str:
    """Return why a block device is not free; empty if it is."""
    if device["type"] != "disk":
        return f"a {device['type']}, not a disk"
    if device["ro"] in (True, "1"):
        return "read-only"
    if device.get("children"):
        return "it has " + ", ".join(child["name"] for child in device["children"])
    return exclusive(device["name"]) or signature(device["name"])


def choose(
    wanted: str | list[str], devices: list[dict[str, Any]], uuid: str = ""
) -> tuple[list[str], dict[str, str], list[str]]:
    """Return the disks to use, why requested disks cannot be used, and the disks kept unchanged.

    Only a single disk is kept: of an array, nobody knows whether all of it is there.
    """
    known = {device["name"]: device for device in devices}
    if wanted == "auto":
        nvme = [d for d in devices if d.get("tran") == "nvme" and not occupied(d)]
        return sorted(d["name"] for d in nvme), {}, []
    if uuid and len(wanted) == 1 and wanted[0] in known and is_own(known[wanted[0]], uuid):
        return [], {}, list(wanted)
    reasons = {name: occupied(known[name]) if name in known else "not there" for name in wanted}
    return sorted(wanted), {name: reason for name, reason in reasons.items() if reason}, []


def former(refused: dict[str, str], label: str) -> list[str]:
    """Return the refused disks with scratch of gpubed, perhaps of another cluster."""
    return [disk for disk, reason in refused.items() if reason and label in tag(disk, "LABEL")]


def lasting(disk: str) -> str:
    """Return the persistent name of a disk; its kernel name if it has none."""
    links = sorted(_BY_ID.glob("*"))
    return next((str(link) for link in links if link.resolve() == Path(disk)), disk)


if __name__ == "__main__":
    asked, own, label = json.loads(sys.argv[1]), *sys.argv[2:]
    disks, refused, kept = choose(asked, listed(), own)
    answer = {"disks": disks, "kept": kept, "refused": refused, "former": former(refused, label)}
    answer["lasting"] = [lasting(disk) for disk in (*disks, *kept)]
    sys.stdout.write(json.dumps(answer))

"""Names the disks that a node can give to scratch, as JSON. Standard library only.

A disk is free when nothing is known to be on it (no partition, no signature) and the
kernel lets it be opened exclusively: mounted disks and members of arrays refuse that.
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
    """Return what blkid sees on a disk; empty when it sees nothing."""
    done = subprocess.run(
        ["blkid", "--probe", "--output", "value", "--match-tag", "TYPE", disk],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == _NOTHING_FOUND:
        return ""
    return done.stdout.strip() or "a partition table"


def exclusive(disk: str) -> str:
    """Return why the kernel does not give a disk away; empty when it does."""
    try:
        os.close(os.open(disk, os.O_RDONLY | os.O_EXCL))
    except OSError as error:
        return "in use" if error.errno == errno.EBUSY else os.strerror(error.errno)
    return ""


def occupied(device: dict[str, Any]) -> str:
    """Return why a block device is not free; empty when it is."""
    if device["type"] != "disk":
        return f"a {device['type']}, not a disk"
    if device["ro"] in (True, "1"):
        return "read-only"
    if device.get("children"):
        return "it has " + ", ".join(child["name"] for child in device["children"])
    return exclusive(device["name"]) or signature(device["name"])


def choose(
    wanted: str | list[str], devices: list[dict[str, Any]]
) -> tuple[list[str], dict[str, str]]:
    """Return the disks to take, and why each that was asked for cannot be taken."""
    known = {device["name"]: device for device in devices}
    if wanted == "auto":
        nvme = [d for d in devices if d.get("tran") == "nvme" and not occupied(d)]
        return sorted(d["name"] for d in nvme), {}
    reasons = {name: occupied(known[name]) if name in known else "not there" for name in wanted}
    return sorted(wanted), {name: reason for name, reason in reasons.items() if reason}


def lasting(disk: str) -> str:
    """Return the name that a disk keeps when others come and go; its own if it has none."""
    links = sorted(_BY_ID.glob("*"))
    return next((str(link) for link in links if link.resolve() == Path(disk)), disk)


if __name__ == "__main__":
    disks, refused = choose(json.loads(sys.argv[1]), listed())
    named = [lasting(disk) for disk in disks]
    sys.stdout.write(json.dumps({"disks": disks, "lasting": named, "refused": refused}))

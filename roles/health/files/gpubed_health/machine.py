"""Checks disk, services, shared storage, network and memory of the machine."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpubed_health import command


def disk(expected: dict[str, Any], _memory: dict[str, Any]) -> Iterator[str]:
    """The root file system has free space."""
    free = shutil.disk_usage("/").free / 2**30
    if free < expected["min_free_gib"]:
        yield f"only {free:.1f} GiB of / are free, {expected['min_free_gib']} are needed"


def units(expected: dict[str, Any], _memory: dict[str, Any]) -> Iterator[str]:
    """No unit that jobs depend on has failed; units that are not installed do not count."""
    for unit in expected["units"]:
        if command.run("systemctl", "is-failed", "--quiet", unit)[0] == 0:
            yield f"{unit} has failed (journalctl -u {unit})"


def shared(expected: dict[str, Any], _memory: dict[str, Any]) -> Iterator[str]:
    """The shared storage is mounted and answers."""
    path = expected["shared_path"]
    if not path:
        return
    # In a child process, because a dead NFS server would make this process hang forever.
    code, text = command.run("stat", "--file-system", path)
    if code:
        yield f"{path} does not answer: {text}"
    elif command.run("mountpoint", "--quiet", path)[0]:
        yield f"{path} is not mounted"


def link(expected: dict[str, Any], _memory: dict[str, Any]) -> Iterator[str]:
    """The experiment address is on an interface that is up."""
    address = expected["experiment_address"]
    if not address:
        return
    _, text = command.run("ip", "-json", "address")
    for interface in json.loads(text or "[]"):
        if address in (a["local"] for a in interface.get("addr_info", ())):
            if interface["operstate"] not in ("UP", "UNKNOWN"):
                yield f"{interface['ifname']} with {address} is {interface['operstate'].lower()}"
            return
    yield f"no interface has the experiment address {address}"


def memory(_expected: dict[str, Any], _memory: dict[str, Any]) -> Iterator[str]:
    """The memory controller has not counted an error that it could not correct."""
    for counter in sorted(Path("/sys/devices/system/edac/mc").glob("mc*/ue_count")):
        if count := int(counter.read_text()):
            yield f"{counter.parent.name} has counted {count} uncorrectable memory errors"

#!/usr/bin/env python3
"""Prints the address of each GPU that is near to some processors of a socket, and not to others.

This happens if a socket has several NUMA nodes (AMD's NPS2 and NPS4). Since release
23.11 Slurm takes a node out whose GPUs its own detection finds like that, since it places
jobs by sockets ("doesn't match socket boundaries").
"""

import sys
from pathlib import Path


def listed(text: str) -> set[int]:
    """Return the numbers of a kernel's list, as `0-3,8`."""
    ends = [part.split("-") for part in text.strip().split(",") if part]
    return {number for end in ends for number in range(int(end[0]), int(end[-1]) + 1)}


def sockets(cpus: Path) -> list[set[int]]:
    """Return the processors of each socket."""
    found: dict[str, set[int]] = {}
    for number in listed((cpus / "online").read_text()):
        package = cpus / f"cpu{number}" / "topology" / "physical_package_id"
        found.setdefault(package.read_text(), set()).add(number)
    return list(found.values())


def main(driver: str, devices: str, cpus: str) -> None:
    """Check the GPUs of the driver."""
    whole = sockets(Path(cpus))
    online = set().union(*whole)
    for gpu in sorted(Path(driver).glob("gpus/*")):
        told = Path(devices) / gpu.name.lower() / "local_cpulist"
        near = listed(told.read_text()) & online if told.exists() else online
        if near not in (set(), online, *whole):
            sys.stdout.write(f"{gpu.name}\n")


main(*(sys.argv[1:] or ["/proc/driver/nvidia", "/sys/bus/pci/devices", "/sys/devices/system/cpu"]))

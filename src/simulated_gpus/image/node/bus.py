"""What /sys tells of PCI devices and kernel modules, with those that are only pretended.

Overlays: what is really there stays, and a file that is written here covers nothing else.
"""

import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_LAYERS = Path("/run/gpubed-simulation/layers")
DEVICES = Path("/sys/bus/pci/devices")
DRIVERS = Path("/sys/bus/pci/drivers")
MODULES = Path("/sys/module")
PROC = Path("/proc/driver")
_GIGATRANSFERS = {3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}


def cover() -> None:
    """Lay a writable layer over the real folders; nothing happens the second time."""
    for folder in (DEVICES, DRIVERS, MODULES):
        if not _is_covered(folder, "overlay"):
            upper, work = (_LAYERS / folder.name / name for name in ("upper", "work"))
            for path in (upper, work):
                path.mkdir(parents=True, exist_ok=True)
            options = f"lowerdir={folder},upperdir={upper},workdir={work}"
            _run("mount", "-t", "overlay", "-o", options, "gpubed-simulation", str(folder))
    # An overlay cannot stand on /proc; what is in this folder is of no use to a node.
    if not _is_covered(PROC, "tmpfs"):
        _run("mount", "-t", "tmpfs", "-o", "mode=755", "gpubed-simulation", str(PROC))


def _is_covered(folder: Path, kind: str) -> bool:
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return f"gpubed-simulation {folder} {kind} " in "".join(f"{line}\n" for line in mounts)


def show(address: str, pci: Mapping[str, Any], place: Mapping[str, Any]) -> None:
    """Put a device on the bus; what was there is hidden.

    Args:
        address: As `0000:1b:00.0`.
        pci: Ids and class as hexadecimal text, PCIe generation and width: see models/;
            `product_data` is a text of its vendor's.
        place: Its NUMA node and the CPUs next to it, as numbers.
    """
    folder = DEVICES / address
    if folder.is_symlink():
        folder.unlink()
    folder.mkdir(exist_ok=True)
    speed, width = f"{_GIGATRANSFERS[pci['generation']]} GT/s PCIe", str(pci["width"])
    ids = ("vendor", "device", "subsystem_vendor", "subsystem_device", "class", "revision")
    texts = {
        **{name: f"0x{pci[name]}" for name in ids},
        "numa_node": str(place["numa_node"]),
        "local_cpulist": ",".join(map(str, place["cpus"])),
        "enable": "1",
        "current_link_speed": speed,
        "max_link_speed": speed,
        "current_link_width": width,
        "max_link_width": width,
        "resource": _resource(pci["bars"]),
    }
    for name, text in texts.items():
        (folder / name).write_text(f"{text}\n")
    (folder / "config").write_bytes(_config(pci))
    if "product_data" in pci:
        (folder / "vpd").write_bytes(_product_data(pci["product_data"]))


def lose(address: str) -> None:
    """Let a device answer nothing any more: it reads as ones, as what fell off the bus does."""
    (DEVICES / address / "config").write_bytes(b"\xff" * 64)
    (DEVICES / address / "revision").write_text("0xff\n")


def bind(addresses: Iterable[str], module: str | None) -> None:
    """Say which module drives devices; None is none."""
    for address in addresses:
        link = DEVICES / address / "driver"
        for stale in (link, *DRIVERS.glob(f"*/{address}")):
            stale.unlink(missing_ok=True)
        if module:
            link.symlink_to(f"../../drivers/{module}")
            (DRIVERS / module).mkdir(exist_ok=True)
            (DRIVERS / module / address).symlink_to(f"../../devices/{address}")


def load(name: str, version: str) -> None:
    """Show a loaded module."""
    folder = MODULES / name
    folder.mkdir(exist_ok=True)
    (folder / "version").write_text(f"{version}\n")
    (folder / "initstate").write_text("live\n")
    (folder / "refcnt").write_text("0\n")


def unload(name: str) -> None:
    """Show a module no more."""
    shutil.rmtree(MODULES / name, ignore_errors=True)


def version(name: str) -> str | None:
    """Return the version of a loaded module, or None."""
    path = MODULES / name / "version"
    return path.read_text().strip() if path.exists() else None


def _config(pci: Mapping[str, Any]) -> bytes:
    """Return the first 64 bytes of the configuration space (PCI Local Bus 3.0, section 6.1)."""
    config = bytearray(64)
    fields = {0x00: "vendor", 0x02: "device", 0x2C: "subsystem_vendor", 0x2E: "subsystem_device"}
    for offset, name in fields.items():
        config[offset : offset + 2] = int(pci[name], 16).to_bytes(2, "little")
    config[0x04] = 0x06  # memory space and bus mastering are on
    config[0x08] = int(pci["revision"], 16)
    config[0x09:0x0C] = int(pci["class"], 16).to_bytes(3, "little")
    return bytes(config)


def _product_data(text: str) -> bytes:
    """Return vital product data with one field of the vendor's (PCI 3.0, appendix I)."""
    field = b"V0" + bytes([len(text)]) + text.encode()
    return b"\x90" + len(field).to_bytes(2, "little") + field + b"\x78"


def _resource(bars: Iterable[Mapping[str, int]]) -> str:
    """Return the regions as sysfs lists them; their addresses are made up, their sizes not."""
    start, lines = 0x1000_0000_0000, ["0x0 0x0 0x0"] * 7
    for bar in bars:
        lines[bar["index"]] = f"{start:#018x} {start + bar['bytes'] - 1:#018x} 0x000000000014220c"
        start += bar["bytes"]
    return "\n".join(lines)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)

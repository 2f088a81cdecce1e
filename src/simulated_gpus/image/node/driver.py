"""The kernel module that is only pretended: built by `dkms`, loaded by `modprobe`.

A built module is a file of text where a real one would be, of the lines that modinfo prints.
"""

import os
import platform
import re
import shutil
import stat
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import bus
import kernel_log
import machine

import node

# What is loaded with it; the first is the driver itself.
MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm")
_BUILT = Path("/lib/modules") / platform.release() / "updates/dkms"
_INDEX = _BUILT.parents[1] / "modules.dep"
_SOURCES = Path("/usr/src")
_LIBRARY = Path("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
_PROC = bus.PROC / "nvidia"
_NVML = node.RUN / "nvml"
_MAJOR, _UVM_MAJOR, _CAPS_MAJOR, _CONTROL = 195, 511, 510, 255
_MIG_MINORS = bus.PROC / "nvidia-caps/mig-minors"
_HOLDERS = ("nvidia-persistenced.service", "nvidia-fabricmanager.service")


class Failed(Exception):
    """What cannot be done, in the words of the real program."""


def sources() -> list[dict[str, str]]:
    """Return the modules that packages brought to be built: the fields of their dkms.conf."""
    return [_fields(path) for path in sorted(_SOURCES.glob("*/dkms.conf")) if _is_ours(path)]


def build(name: str, version: str) -> None:
    """Build a module for the running kernel, as `dkms install` does.

    Raises:
        Failed: There is no such module, or it does not compile.
    """
    path = _SOURCES / f"{name}-{version}" / "dkms.conf"
    if not path.exists():
        raise Failed(f"Error! Could not find module source directory {path.parent}")
    fields = _fields(path)
    if fields["BROKEN"] == "yes":
        raise Failed(
            f"Error! Bad return status for module build on kernel: {platform.release()}\n"
            f"Consult /var/lib/dkms/{name}/{version}/build/make.log for more information."
        )
    lines = {"filename": _BUILT / f"{name}.ko", "version": version, "license": fields["LICENSE"]}
    node.write(_BUILT / f"{name}.ko", "".join(f"{key}: {text}\n" for key, text in lines.items()))
    _INDEX.touch()


def discard(name: str) -> None:
    """Remove a built module, as `dkms remove` does."""
    (_BUILT / f"{name}.ko").unlink(missing_ok=True)


def built(name: str | None = None) -> dict[str, str] | None:
    """Return what modinfo says of a built module, or of the one that `nvidia` stands for."""
    pattern = f"{name}.ko" if name else "nvidia*.ko"
    found = sorted(_BUILT.glob(pattern))
    return (
        dict(line.split(": ", 1) for line in found[0].read_text().splitlines()) if found else None
    )


def load() -> None:
    """Load the driver; nothing happens when it is loaded.

    Raises:
        Failed: There is no module for the running kernel.
    """
    if bus.version("nvidia"):
        return
    module = built()
    if module is None:
        folder = f"/lib/modules/{platform.release()}"
        raise Failed(f"modprobe: FATAL: Module nvidia not found in directory {folder}")
    _come_up(module["version"], module["license"])


def _come_up(version: str, license_: str) -> None:
    found = node.simulated()
    for name in MODULES:
        bus.load(name, version)
    kind = "Open Kernel Module for x86_64" if license_ != "NVIDIA" else "x86_64 Kernel Module"
    banner = f"NVRM version: NVIDIA UNIX {kind}  {version}  Release Build  (gpubed simulation)"
    _proc(found, version, f"{banner}\nGCC version:  none, no module was compiled\n")
    _device_files(found)
    bus.bind([gpu["pci"] for gpu in found["gpus"]], "nvidia")
    kernel_log.say(f"NVRM: loading NVIDIA UNIX {kind}  {version}  (gpubed simulation)")
    tell_nvml()


def unload() -> None:
    """Unload the driver.

    Raises:
        Failed: Something holds it.
    """
    if bus.version("nvidia") is None:
        return
    for holder in _HOLDERS:
        asked = ["systemctl", "is-active", "--quiet", holder]
        if subprocess.run(asked, check=False).returncode == 0:
            raise Failed(f"modprobe: FATAL: Module nvidia is in use.  ({holder})")
    for name in MODULES:
        bus.unload(name)
    bus.bind([gpu["pci"] for gpu in node.simulated()["gpus"]], None)
    shutil.rmtree(_PROC, ignore_errors=True)
    for path in Path("/dev").glob("nvidia*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.rmtree(_MIG_MINORS.parent, ignore_errors=True)
    tell_nvml()


def pretend_version(version: str) -> None:
    """Let another version be loaded than is installed."""
    for name in MODULES:
        bus.load(name, version)
    path = _PROC / "version"
    path.write_text(re.sub(r"\d+\.\d+(\.\d+)?", version, path.read_text(), count=1))
    tell_nvml()


def tell_nvml() -> None:
    """Write what the NVML library reads."""
    loaded = bus.version("nvidia")
    found, broken = node.simulated(), node.faults()
    node.write(_NVML, machine.nvml_text(found, broken, driver=_installed(), module=loaded))


def _installed() -> str | None:
    """Return the version of the driver's libraries, or None."""
    target = _LIBRARY.resolve()
    return target.name.removeprefix("libnvidia-ml.so.") if target.exists() else None


def _proc(found: Mapping[str, Any], version: str, banner: str) -> None:
    for gpu in found["gpus"]:
        lines = {
            "Model": found["model"]["name"],
            "IRQ": 0,
            "GPU UUID": gpu["uuid"],
            "Video BIOS": found["model"]["vbios"],
            "Bus Type": "PCIe",
            "DMA Size": "47 bits",
            "DMA Mask": "0x7fffffffffff",
            "Bus Location": gpu["pci"],
            "Device Minor": gpu["minor"],
            "GPU Firmware": version if found["model"]["gsp"] else "N/A",
            "GPU Excluded": "No",
        }
        folder = _PROC / "gpus" / gpu["pci"]
        folder.mkdir(parents=True, exist_ok=True)
        text = "".join(f"{key + ':':<16} {value}\n" for key, value in lines.items())
        (folder / "information").write_text(text)
    (_PROC / "version").write_text(banner)
    (_PROC / "params").write_text(
        "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n"
    )


def _device_files(found: Mapping[str, Any]) -> None:
    numbers = {f"nvidia{gpu['minor']}": (_MAJOR, gpu["minor"]) for gpu in found["gpus"]}
    numbers |= {"nvidiactl": (_MAJOR, _CONTROL)}
    numbers |= {"nvidia-uvm": (_UVM_MAJOR, 0), "nvidia-uvm-tools": (_UVM_MAJOR, 1)}
    if found["model"]["mig"]:
        numbers |= _caps(found)
    for name, number in numbers.items():
        path = Path("/dev") / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(*number))
        path.chmod(0o666)


def _caps(found: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Number the device files of MIG instances, as the driver does; here all are there at once."""
    minors = {}
    for gpu in found["gpus"]:
        for instance in range(15):
            first = 3 + 135 * gpu["minor"] + 9 * instance
            minors[f"gpu{gpu['minor']}/gi{instance}/access"] = first
            minors[f"gpu{gpu['minor']}/gi{instance}/ci0/access"] = first + 1
    node.write(_MIG_MINORS, "".join(f"{name} {minor}\n" for name, minor in minors.items()))
    return {f"nvidia-caps/nvidia-cap{minor}": (_CAPS_MAJOR, minor) for minor in minors.values()}


def _is_ours(path: Path) -> bool:
    return "STAND-IN" in path.read_text().partition("\n")[0]


def _fields(path: Path) -> dict[str, str]:
    pairs = (line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)
    return {key: value.strip('"') for key, value in pairs}

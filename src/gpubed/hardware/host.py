"""Judges whether a host can use its GPUs well: firmware, kernel, PCI bus and power.

`roles/hardware/files/gpubed-gpu-host` collects the data on the host; the findings name faults and
their repair. Sources of the requirements:

- Secure Boot loads signed modules only: NVIDIA driver installation guide, "Secure Boot". DKMS signs
each module that it builds; the firmware accepts its key once it is in shim's list (mokutil(1)).
- ACS and an IOMMU send peer-to-peer traffic through the root of the PCI bus: NCCL user guide, "PCI
Access Control Services (ACS)".
- Sizes of BAR1, the window to a GPU's memory: the kernel's ABI, sysfs-bus-pci, `resourceN_resize`.
- The link of an idle GPU may run below its maximum speed, but keeps all lanes. So the current
width counts, and the maximum speeds of card and slot.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from gpubed.core import reading
from gpubed.nodes.ssh import SSH, run_program
from gpubed.testbeds.base import Finding

# Names of the keys that DKMS creates on Debian and on Ubuntu. DKMS signs with its key even if the
# firmware does not accept it.
_OWN_KEY = re.compile(r"DKMS|Secure Boot Module Signature key")
# Finding `nouveau` reports nouveau.
_DRIVERS = (None, "nvidia", "nouveau")


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Link(_Model):
    """A PCI link: width in lanes, speed in GT/s; None if unknown."""

    current_link_width: float | None = None
    max_link_width: float | None = None
    current_link_speed: float | None = None
    max_link_speed: float | None = None


class Module(_Model):
    """NVIDIA's kernel module."""

    loaded: str | None = None  # version of the loaded module
    installed: bool = False  # whether a module is on disk
    signer: str | None = None  # owner of the key that signed the module on disk
    key: str | None = None  # path of the certificate of DKMS's key on this host
    key_enrolled: bool = False  # whether the firmware's list of machine owner keys has that key


class HostGPU(_Model):
    """A GPU, its driver, and its links up to the root of the PCI bus."""

    pci: str
    driver: str | None = None  # the kernel driver bound to it: nvidia, nouveau, vfio-pci, None
    link: Link = Link()
    slot: Link | None = None  # of the nearest bridge; None without a bridge (in a VM)
    bar1_mib: int | None = None  # size of BAR1 in MiB
    bar1_largest_mib: int | None = None  # largest possible size of BAR1 in MiB; None if unknown
    iommu: str | None = None  # kind of address translation: `identity`, `DMA`, `DMA-FQ`
    redirecting: tuple[str, ...] = ()  # bridges that send peer-to-peer traffic to the root (ACS)
    bridges_seen: bool = True  # whether the bridges could be read, which may need root
    power_limit_w: float | None = None
    power_default_w: float | None = None  # power limit that NVIDIA set
    persistence: bool | None = None
    mig: bool | None = None  # whether Multi-Instance GPU is on; None if the GPU lacks it


class GpuHost(_Model):
    """The settings of a host that its GPUs depend on."""

    schema_: Literal["gpubed/gpu-host/1"] = Field(alias="schema")
    kernel: str
    simulated: str | None = None
    secure_boot: bool | None = None  # None without UEFI
    headers: Literal["installed", "offered"] | None = None  # of the running kernel, by apt
    module: Module = Module()
    nouveau: bool = False
    gpus: tuple[HostGPU, ...] = ()


def look(ssh: SSH) -> GpuHost:
    """Collect the state of a host without changing it; nothing needs to be installed there."""
    output = run_program(ssh, "hardware/files/gpubed-gpu-host").stdout
    return reading.reply(output, f"the description of {ssh.node.name}'s GPUs").json(GpuHost)


def findings(name: str, host: GpuHost, asked: int, *, cut: bool = False) -> list[Finding]:
    """Judge a host that is to have `asked` GPUs, or these cut; ids are `gpu.<node>.<what>`."""
    if host.simulated:
        message = f"{name} has {len(host.gpus)} simulated {host.simulated}"
        return [Finding(f"gpu.{name}.simulated", True, message)]
    return [
        Finding(f"gpu.{name}.{what}", not why, f"{name}: {why or well}", fix if why else None)
        for what, why, well, fix in _judged(host, asked)
        if not (cut and what == "mig")
    ]


def _judged(host: GpuHost, asked: int) -> Iterator[tuple[str, str, str, str]]:
    """Yield for each check its id, the fault or "", the message without a fault, and the repair."""
    here, gpus = len(host.gpus), host.gpus
    yield (
        "count",
        f"has {here} NVIDIA GPUs, {asked} are asked for" if here < asked else "",
        f"{here} GPUs",
        f"set gpus: {here} in cluster.yml; or see lspci -d 10de: and whether the card sits firmly",
    )
    build = "" if host.module.key else "let gpubed up CLUSTER build the driver with a key, and "
    yield (
        "secure_boot",
        _unsigned(host),
        "Secure Boot is off, or accepts the driver",
        f"switch Secure Boot off in the firmware, or {build}enrol the key of DKMS: sudo apt-get "
        f"install mokutil && sudo mokutil --import {host.module.key or '/var/lib/dkms/mok.pub'}; "
        "then sudo reboot, and confirm it at the machine's console (MOK management)",
    )
    yield (
        "nouveau",
        "nouveau drives a GPU" if host.nouveau else "",
        "nouveau drives no GPU",
        "echo 'blacklist nouveau' | sudo tee /etc/modprobe.d/blacklist-nouveau.conf; "
        "sudo update-initramfs -u; sudo reboot",
    )
    lacks = host.headers is None and host.module.loaded is None
    yield (
        "headers",
        f"there are no headers of kernel {host.kernel}, and no driver yet" if lacks else "",
        f"headers of kernel {host.kernel} are {host.headers or 'not needed: a driver is loaded'}",
        f"install linux-headers-{host.kernel}, or boot a kernel of the distribution",
    )
    taken = (f"{gpu.pci} by {gpu.driver}" for gpu in gpus if gpu.driver not in _DRIVERS)
    yield (
        "driver",
        _each("held by another driver", taken),
        "no other driver holds a GPU",
        "remove it from /etc/modprobe.d and the kernel's command line (vfio-pci.ids), then reboot",
    )
    yield (
        "pcie",
        _each("PCIe links are slower than the cards", map(_narrow, gpus)),
        "PCIe links are as wide and as fast as the cards",
        "move the card to a slot with all lanes; check its seat, its riser and the firmware",
    )
    yield (
        "bar1",
        _each(
            "BAR1 is smaller than it could be",
            (_less(gpu, gpu.bar1_mib, gpu.bar1_largest_mib, "MiB") for gpu in gpus),
        ),
        "BAR1 is as large as the card offers, as far as the kernel knows",
        "switch Above 4G Decoding and Resizable BAR on in the firmware",
    )
    yield _peers(gpus)
    yield (
        "mig",
        _each(
            "MIG is on, so programs cannot use the whole GPU",
            (g.pci if g.mig else "" for g in gpus),
        ),
        "MIG is off, as far as the driver knows",
        "end all programs on the GPUs, then: sudo nvidia-smi -mig 0; if it stays pending: sudo "
        "reboot",
    )
    yield (
        "power",
        _each(
            "power is capped",
            (_less(gpu, gpu.power_limit_w, gpu.power_default_w, "W") for gpu in gpus),
        ),
        "no power limit is below NVIDIA's default, as far as the driver knows",
        f"sudo nvidia-smi -pl {max((gpu.power_default_w or 0 for gpu in gpus), default=0):g}",
    )
    yield (
        "persistence",
        _each(
            "persistence mode is off, so each job initialises the GPU",
            (g.pci if g.persistence is False else "" for g in gpus),
        ),
        "GPUs stay initialised, as far as the driver knows",
        "gpubed up CLUSTER runs nvidia-persistenced if it installs the driver; "
        "by hand: sudo nvidia-smi -pm 1",
    )


def _each(why: str, found: Iterable[str]) -> str:
    listed = ", ".join(filter(None, found))
    return f"{why}: {listed}" if listed else ""


def _less(gpu: HostGPU, has: float | None, could: float | None, unit: str) -> str:
    return f"{gpu.pci} {has:g} of {could:g} {unit}" if has and could and has < could else ""


def _unsigned(host: GpuHost) -> str:
    module, why = host.module, ""
    if not host.secure_boot or module.loaded:
        return ""
    if not module.installed:
        why = "" if module.key_enrolled else "a driver is built here"
    elif not module.signer:
        why = "its driver is not signed"
    elif _OWN_KEY.search(module.signer) and not module.key_enrolled:
        why = f"its driver is signed by {module.signer}, which the firmware does not accept"
    return f"Secure Boot is on, and {why}: the kernel will refuse it" if why else ""


def _narrow(gpu: HostGPU) -> str:
    width, lanes = gpu.link.current_link_width, gpu.link.max_link_width
    if width and lanes and width < lanes:
        return f"{gpu.pci} has x{width:g} of x{lanes:g}"
    offered, speed = gpu.slot and gpu.slot.max_link_speed, gpu.link.max_link_speed
    if offered and speed and offered < speed:
        return f"{gpu.pci} is in a slot of {offered:g} of {speed:g} GT/s"
    return ""


def _peers(gpus: tuple[HostGPU, ...]) -> tuple[str, str, str, str]:
    bridges = sorted({bridge for gpu in gpus for bridge in gpu.redirecting})
    translated = [f"{gpu.pci} ({gpu.iommu})" for gpu in gpus if gpu.iommu not in (None, "identity")]
    why = f"an IOMMU translates the addresses of {', '.join(translated)}" if translated else ""
    if bridges:
        why = f"ACS redirects traffic between GPUs and NICs at {', '.join(bridges)}"
    seen = all(gpu.bridges_seen for gpu in gpus)
    return (
        "peer_to_peer",
        why,
        "GPUs and NICs exchange data directly" if seen else "bridges cannot be read without root",
        "switch ACS and the IOMMU (VT-d, AMD-Vi) off in the firmware, or boot with iommu=pt; "
        "a virtual machine needs both on its host",
    )

"""`gpubed doctor` on GPU hosts: the collector on trees, and what is made of its answers.

The trees are SYNTHETIC, written after the kernel's ABI (sysfs-bus-pci) and linux/pci_regs.h:
no host with a GPU was at hand to record one. nvidia-smi, modinfo and apt-cache are STAND-INS.
"""

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from gpubed.hardware import host
from gpubed.hardware.host import GpuHost

pytestmark = pytest.mark.process

COLLECTOR = Path(__file__).parents[3] / "roles/hardware/files/gpubed-gpu-host"
KERNEL = "6.1.0-40-amd64"
BRIDGE, CARD = "0000:00:01.0", "0000:01:00.0"
LINK = {"link_width": "16", "link_speed": "32.0 GT/s PCIe"}
SMI = "00000000:01:00.0, 700.00, 700.00, Enabled"


class Tree:
    """A host with one H100 below one bridge, everything as it should be."""

    def __init__(self, folder):
        self.folder = folder
        self.card = self._device(f"pci0000:00/{BRIDGE}/{CARD}")
        self.bridge = self.card.parent
        self.write(self.card / "vendor", "0x10de")
        self.write(self.card / "device", "0x2330")
        self.write(self.card / "class", "0x030200")
        self.write(self.bridge / "class", "0x060400")
        for device in (self.card, self.bridge):
            for key, value in LINK.items():
                self.write(device / f"current_{key}", value)
                self.write(device / f"max_{key}", value)
        self.bar1(131072, 131072)
        self.acs(0)
        self.write(folder / f"lib/modules/{KERNEL}/build/Makefile", "")
        self.program("nvidia-smi", SMI)

    def _device(self, place):
        path = self.folder / "sys/devices" / place
        path.mkdir(parents=True)
        index = self.folder / "sys/bus/pci/devices"
        index.mkdir(parents=True)
        for device in (path, path.parent):
            (index / device.name).symlink_to(device)
        return path

    def write(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def bar1(self, mib, largest, index=2):
        """Let a card have registers, this window to its memory, and another small one."""
        lines = ["0x0 0x0 0x0"] * 7
        for place, size in ((0, 16), (index, mib), (index + 2, 32)):
            first = place << 40
            lines[place] = f"{first:#x} {first + (size << 20) - 1:#x} 0x14220c"
        self.write(self.card / "resource", "\n".join(lines))
        # Every size from 1 MiB to the largest.
        self.write(self.card / f"resource{index}_resize", f"{(largest << 1) - 1:016x}")

    def acs(self, control):
        """Write the bridge's configuration space: AER, then ACS with this control register."""
        space = bytearray(4096)
        struct.pack_into("<I", space, 0x100, 0x140 << 20 | 1 << 16 | 0x0001)
        struct.pack_into("<I", space, 0x140, 1 << 16 | 0x000D)
        struct.pack_into("<HH", space, 0x144, 0x5F, control)
        (self.bridge / "config").write_bytes(space)

    def secure_boot(self, state):
        path = self.folder / "sys/firmware/efi/efivars"
        path.mkdir(parents=True)
        name = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
        (path / name).write_bytes(bytes([6, 0, 0, 0, state]))

    def dkms_key(self, path="var/lib/dkms/mok.pub", *, enrolled):
        """The key that DKMS made, and the list of keys as shim leaves it to the kernel."""
        self.write(self.folder / path, "DER of this host's own key")
        known = b"DER of another key" + (self.folder / path).read_bytes() * enrolled
        name = "MokListRT-605dab50-e046-4300-abb6-3dd810dd8b23"
        variable = self.folder / "sys/firmware/efi/efivars" / name
        variable.write_bytes(bytes([6, 0, 0, 0]) + known + b"more")

    def program(self, name, answer):
        """STAND-IN: a program that always says the same."""
        path = self.folder / "bin" / name
        self.write(path, f"#!/bin/sh\necho '{answer}'")
        path.chmod(0o755)

    def seen(self):
        command = [sys.executable, COLLECTOR, "--root", self.folder, "--kernel", KERNEL]
        environment = {**os.environ, "PATH": f"{self.folder / 'bin'}:/nowhere"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return GpuHost.model_validate_json(done.stdout)

    def wrong(self, asked=1):
        found = host.findings("node-0", self.seen(), asked)
        return {f.id.removeprefix("gpu.node-0."): f for f in found if not f.ok}


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path)


def test_a_good_host_has_nothing_to_repair(tree):
    found = host.findings("node-0", tree.seen(), 1)
    assert [f for f in found if not f.ok] == []
    assert len(found) == 11


def nouveau(tree):
    tree.write(tree.folder / "sys/bus/pci/drivers/nouveau/0000:07:00.0/class", "")


def unsigned(tree):
    tree.secure_boot(1)
    tree.program("modinfo", "")


def half_width(tree):
    tree.write(tree.card / "current_link_width", "8")


def slow_slot(tree):
    tree.write(tree.bridge / "max_link_speed", "16.0 GT/s PCIe")


def held(tree):
    (tree.folder / "sys/bus/pci/drivers/vfio-pci").mkdir(parents=True)
    (tree.card / "driver").symlink_to(tree.folder / "sys/bus/pci/drivers/vfio-pci")


def translated(tree):
    tree.write(tree.card / "iommu_group/type", "DMA-FQ")


@pytest.mark.parametrize(
    ("break_it", "what", "words", "fix"),
    [
        (nouveau, "nouveau", "nouveau drives", "blacklist nouveau"),
        (unsigned, "secure_boot", "a driver is built here: the kernel will refuse", "mokutil"),
        (half_width, "pcie", f"{CARD} has x8 of x16", "slot with all lanes"),
        (slow_slot, "pcie", "slot of 16 of 32 GT/s", "slot with all lanes"),
        (held, "driver", f"{CARD} by vfio-pci", "modprobe.d"),
        (translated, "peer_to_peer", f"{CARD} (DMA-FQ)", "iommu=pt"),
        (lambda t: t.acs(0x1D), "peer_to_peer", f"ACS redirects .* at {BRIDGE}", "iommu=pt"),
        (lambda t: t.bar1(256, 131072), "bar1", "256 of 131072 MiB", "Resizable BAR"),
        (
            lambda t: t.program("nvidia-smi", SMI.replace("700.00,", "500.00,", 1)),
            "power",
            "500 of 700 W",
            "nvidia-smi -pl 700",
        ),
        (
            lambda t: t.program("nvidia-smi", SMI.replace("Enabled", "Disabled")),
            "persistence",
            CARD,
            "nvidia-persistenced",
        ),
        (
            lambda t: (
                (t.folder / f"lib/modules/{KERNEL}/build/Makefile").unlink()
                or (t.folder / f"lib/modules/{KERNEL}/build").rmdir()
            ),
            "headers",
            f"no headers of kernel {KERNEL}",
            f"linux-headers-{KERNEL}",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_repair(tree, break_it, what, words, fix):
    break_it(tree)
    wrong = tree.wrong()
    assert list(wrong) == [what]
    assert re.search(words.replace("(", r"\(").replace(")", r"\)"), wrong[what].message)
    assert fix in wrong[what].fix


def test_more_gpus_asked_than_there_are(tree):
    assert "has 1 NVIDIA GPUs, 2 are asked for" in tree.wrong(asked=2)["count"].message


@pytest.mark.parametrize(
    ("signer", "path"),
    [
        ("DKMS module signing key", "/var/lib/dkms/mok.pub"),
        ("gpu-1 Secure Boot Module Signature key", "/var/lib/shim-signed/mok/MOK.der"),
    ],
)
@pytest.mark.parametrize("enrolled", [True, False])
def test_what_dkms_signs_is_taken_where_the_firmware_knows_its_key(tree, signer, path, enrolled):
    """DKMS signs with a key of its own, whether the firmware knows it or not."""
    tree.secure_boot(1)
    tree.program("modinfo", signer)
    tree.dkms_key(path[1:], enrolled=enrolled)
    wrong = tree.wrong()
    assert list(wrong) == ([] if enrolled else ["secure_boot"])
    if not enrolled:
        assert f"signed by {signer}, which the firmware does not accept" in (
            wrong["secure_boot"].message
        )
        assert f"mokutil --import {path}" in wrong["secure_boot"].fix
        assert "apt-get install mokutil" in wrong["secure_boot"].fix


@pytest.mark.parametrize(
    ("mode", "fine"), [("Enabled", False), ("Disabled", True), ("[N/A]", True)]
)
def test_a_gpu_that_is_cut_into_instances_is_told(tree, mode, fine):
    """Jobs, containers and health count whole GPUs; without instances there is none to use."""
    case = f'case "$1" in *mig*) echo "00000000:01:00.0, {mode}"; exit ;; esac'
    smi = tree.folder / "bin/nvidia-smi"
    smi.write_text(smi.read_text().replace("#!/bin/sh", f"#!/bin/sh\n{case}"))
    wrong = tree.wrong()
    assert list(wrong) == ([] if fine else ["mig"])
    if not fine:
        assert f"MIG is on, so programs cannot use the whole GPU: {CARD}" in wrong["mig"].message
        assert "sudo nvidia-smi -mig 0" in wrong["mig"].fix
    assert all(finding.ok for finding in host.findings("node-0", tree.seen(), 1, cut=True))


def test_an_idle_link_that_is_slow_is_well(tree):
    """GPUs save power that way; only what card and slot could do counts."""
    tree.write(tree.card / "current_link_speed", "2.5 GT/s PCIe")
    assert tree.wrong() == {}

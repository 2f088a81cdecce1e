"""The collector on recorded machines, and the controller's model of what it prints."""

import os
import subprocess
import time

import pytest

from gpubed.hardware.facts import Facts
from support import by_path, machines

pytestmark = pytest.mark.process

GPUS = [
    ("k80", 4, "Kepler", "3.7", "GK210", "Tesla K80", 11441),
    ("v100-dgx1", 8, "Volta", "7.0", "GV100", "Tesla V100-SXM2-32GB", 32768),
    ("h100-hgx", 8, "Hopper", "9.0", "GH100", "NVIDIA H100 80GB HBM3", 81559),
]


def read(name, folder, **options) -> Facts:
    return Facts.model_validate(machines.facts(name, folder, **options))


def write(files):
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_nothing_needs_to_be_installed_on_the_node(tmp_path):
    """`plan` runs it on own hosts from its standard input, where no table lies beside it."""
    machines.build("t4", tmp_path)
    table = machines.COLLECTOR.with_name("nvidia-gpus.json").read_text()
    with machines.COLLECTOR.open("rb") as program:
        found = machines.collect(tmp_path, "--table", table, program="-", stdin=program)
    assert {gpu["chip"] for gpu in found["gpus"]} == {"TU104"}


@pytest.mark.parametrize(("name", "count", "generation", "cc", "chip", "title", "mib"), GPUS)
def test_gpus_are_identified(tmp_path, name, count, generation, cc, chip, title, mib):
    found = read(name, tmp_path)
    assert [gpu.index for gpu in found.gpus] == list(range(count))
    identity = {
        (g.generation, g.compute_capability, g.chip, g.title, g.memory_mib) for g in found.gpus
    }
    assert identity == {(generation, cc, chip, title, mib)}


def test_gpus_that_are_cut_into_instances_are_told(tmp_path):
    """Where the driver knows of MIG: before 450 it refuses the whole question."""
    machines.build("a100-dgx", tmp_path)
    answers = tmp_path / "bin/nvidia-smi"
    assert {gpu["mig"] for gpu in machines.collect(tmp_path)["gpus"]} == {None}
    cut = "Enabled, 00000000:07:00.0\nDisabled, 00000000:0F:00.0\n[N/A], 00000000:47:00.0"
    others = answers.read_text().removeprefix("#!/bin/sh\n")
    case = f"case $1 in *mig*) echo '{cut}'; exit ;; esac"
    answers.write_text(f"#!/bin/sh\n{case}\n{others}")
    told = Facts.model_validate(machines.collect(tmp_path)).gpus
    assert [gpu.mig for gpu in told[:4]] == [True, False, None, None]
    assert all(gpu.index is not None for gpu in told)


@pytest.mark.parametrize(
    "program",
    [
        "hardware/files/gpubed-facts",
        "hardware/files/gpubed-gpu-host",
        "monitoring/files/gpubed-metrics",
    ],
)
def test_a_driver_that_hangs_is_not_waited_for(tmp_path, monkeypatch, program):
    """What hangs inside a driver, as after a GPU fell off the bus, cannot even be killed."""
    hanging = tmp_path / "nvidia-smi"
    hanging.write_text("#!/bin/sh\n# STAND-IN\nexec sleep 20\n")
    hanging.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(subprocess.Popen, "kill", lambda _: None)
    monkeypatch.syspath_prepend(str(machines.ROOT / "roles/health/files"))
    collector = by_path.load(machines.ROOT / "roles" / program, "gpubed_that_asks")
    monkeypatch.setattr(collector, "TIMEOUT_S", 0.2)
    start = time.monotonic()
    assert collector.output("nvidia-smi") == ""
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(("vpd", "found"), [("PN\x08MCX\0SW_MNG", 1), ("PN\x08MCX755106", 0)])
def test_bridges_to_nvswitches_are_told_by_their_product_data(tmp_path, vpd, found):
    """From NVLink 5 on, NVSwitches are behind adapters; no such machine was recorded."""
    machines.build("b200", tmp_path)
    bridge = tmp_path / "sys/bus/pci/devices/0000:05:00.0"
    write(
        {
            bridge / "vendor": "0x15b3",
            bridge / "device": "0x1021",
            bridge / "class": "0x020700",
            bridge / "vpd": vpd,
        }
    )
    port = tmp_path / "sys/class/infiniband/mlx5_8/ports/1"
    write({port / "state": "4: ACTIVE", port / "link_layer": "InfiniBand"})
    (port.parents[1] / "device").symlink_to(bridge)
    told = Facts.model_validate(machines.collect(tmp_path))
    assert len(told.nvswitches) == found
    assert (told.fabric, told.nvlink5) == (bool(found), bool(found))
    # No rank may be bound to what leads to no other node.
    assert [hca.name for hca in told.hcas] == ([] if found else ["mlx5_8"])


@pytest.mark.parametrize(
    ("module", "installed"),
    [
        ("sys/module/nvidia/version", "590.48.01"),
        ("usr/src/nvidia-590.48.01/dkms.conf", "590.48.01"),
        ("lib/modules/6.1.0-49-amd64/updates/dkms/nvidia.ko.xz", "590.48.01"),
        ("usr/src/other/dkms.conf", None),
    ],
)
def test_a_driver_is_there_with_library_and_a_module_of_any_kernel(tmp_path, module, installed):
    library = tmp_path / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.590.48.01"
    write({library: "", tmp_path / module: "590.48.01"})
    (library.parent / "libnvidia-ml.so.1").symlink_to(library.name)
    assert machines.collect(tmp_path)["driver"]["installed"] == installed


def test_packages_that_dpkg_did_not_finish_are_told(tmp_path):
    states = {
        "nvidia-kernel-dkms": "install ok half-configured",
        "libcuda1": "install ok unpacked",
        "libnvidia-ml1": "install ok installed",
        "nvidia-smi": "deinstall ok config-files",
        "nvidia-container-toolkit": "install ok half-configured",
        "openssh-server": "install ok half-configured",
        "nvidia-settings": "install ok half-configured",
        "xserver-xorg-video-nvidia": "install ok unpacked",
    }
    about = "Maintainer: x\nArchitecture: amd64\nVersion: 580.70.99-1\nDescription: x\n"
    told = [f"Package: {name}\nStatus: {state}\n{about}" for name, state in states.items()]
    write({tmp_path / "var/lib/dpkg/status": "\n".join(told)})
    assert machines.collect(tmp_path)["driver"]["unfinished"] == ["libcuda1", "nvidia-kernel-dkms"]


def test_nvlinks_and_hcas_are_told_apart_by_columns(tmp_path):
    """An older nvidia-smi names HCAs in the head of its matrix."""
    first = read("v100-dgx1", tmp_path).gpus[0]
    assert first.links["GPU4"] == "NV2"
    assert (first.links["mlx5_0"], first.links["mlx5_1"], first.links["mlx5_2"]) == (
        "PIX",
        "PHB",
        "SYS",
    )


def test_gpus_know_their_numa_node_and_cpus(tmp_path):
    found = read("a100-dgx", tmp_path)
    assert (found.gpus[0].numa_node, found.gpus[0].cpus) == (3, "48-63,176-191")
    assert {node.node for node in found.numa} == {1, 3, 5, 7}


def linked(folder, slot=None, card=("32.0 GT/s PCIe", "16")):
    """Write a GPU behind a bridge; each says the most that its end of the link can."""
    bridge = folder / "sys/devices/pci0000:00/0000:00:01.0"
    device = bridge / "0000:01:00.0"
    for place, ids in ((bridge, ("0x8086", "0x1901", "0x060400")), (device, H100)):
        write({place / name: text for name, text in zip(IDS, ids, strict=True)})
    for place, most in ((bridge, slot), (device, card)):
        if most:
            write({place / "max_link_speed": most[0], place / "max_link_width": most[1]})
    bus = folder / "sys/bus/pci/devices"
    bus.mkdir(parents=True)
    for place in (bridge, device):
        (bus / place.name).symlink_to(place)
    [found] = Facts.model_validate(machines.collect(folder)).gpus
    return found.pcie


IDS = ("vendor", "device", "class")
H100 = ("0x10de", "0x2330", "0x030200")


@pytest.mark.parametrize(
    ("slot", "link"),
    [
        (("32.0 GT/s PCIe", "16"), "32 GT/s x16"),
        (("16.0 GT/s PCIe", "8"), "16 GT/s x8"),
        (("Unknown", "0"), "32 GT/s x16"),
        (None, "32 GT/s x16"),
    ],
)
def test_a_slot_may_carry_less_than_its_card(tmp_path, slot, link):
    assert str(linked(tmp_path, slot)) == link


def test_a_gpu_that_its_driver_lost_is_still_on_the_bus(tmp_path):
    found = read("mixed", tmp_path)
    assert [(gpu.generation, gpu.index) for gpu in found.gpus] == [("Pascal", 0), ("Turing", None)]


def test_disks_and_soft_roce_are_found(tmp_path):
    """Neither is in the recordings: their sysfs files are written here."""
    machines.build("none", tmp_path / "m")
    block, verbs = tmp_path / "m/sys/block/nvme0n1", tmp_path / "m/sys/class/infiniband/rxe0"
    for path, text in {
        block / "size": "2097152",
        block / "device/model": "A DISK",
        block / "queue/rotational": "0",
        verbs / "parent": "eth1",
        verbs / "ports/1/state": "4: ACTIVE",
        verbs / "ports/1/rate": "2.5 Gb/sec (1X)",
        verbs / "ports/1/link_layer": "Ethernet",
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    found = Facts.model_validate(machines.collect(tmp_path / "m"))
    assert [(d.name, d.bytes, d.nvme) for d in found.disks] == [("nvme0n1", 2**30, True)]
    assert found.hcas[-1].ports[0].netdevs == ("eth1",)


OWN = "gpubed.slice/docker-1.scope"  # a node's, in the tree of its machine
IN_A_SESSION = f"0::/{OWN}/user.slice/session-1.scope\n"
IN_V1 = "4:memory:/gpubed/1\n1:cpu,cpuacct:/gpubed/1\n0::/gpubed/1\n"


@pytest.mark.parametrize(
    ("session", "files", "cpus"),
    [
        ("", {"cpu.max": "100000 100000"}, 1),
        ("", {"cpu.max": "50000 100000"}, 1),
        ("", {"cpu.max": "max 100000"}, 8),
        ("", {}, 8),
        (IN_A_SESSION, {f"{OWN}/cpu.max": "150000 100000"}, 2),
        (IN_A_SESSION, {f"{OWN}/cpu.max": "900000 100000"}, 8),
        (IN_V1, {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"}, 2),
        (IN_V1, {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_a_container_has_the_processors_that_it_may_use(
    tmp_path, monkeypatch, session, files, cpus
):
    of_cgroups(tmp_path, session, files)
    facts = by_path.load(machines.COLLECTOR, "gpubed_facts")
    monkeypatch.setattr(facts.os, "sched_getaffinity", lambda _: range(8))
    assert facts.cpus(tmp_path) == cpus


def of_cgroups(root, session, files):
    """Write which cgroup this process is in, and files of the tree that it sees."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(session)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

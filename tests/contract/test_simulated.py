"""What a simulated node shows: GPUs, a driver from packages, NVML, faults, a kernel that speaks.

The tests follow one after the other on one node: bare, driver installed, loaded, broken, healed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from gpubed.core import paths
from gpubed.hardware.facts import Facts
from gpubed.nodes.ssh import SSH, CommandResult

MODEL, GPUS = "A100-SXM4-80GB", 2
OLD, NEW, BROKEN = "580.65.06-1", "580.82.07-1", "580.70.99-1"
PACKAGES = (
    "nvidia-driver-cuda",
    "libnvidia-ml1",
    "libcuda1",
    "nvidia-persistenced",
    "nvidia-kernel-open-dkms",
)
LOG = "sudo journalctl --dmesg --boot --no-pager --output=cat"
CLUSTERS = ["simulated-container", pytest.param("simulated-vm", marks=pytest.mark.vms)]

pytestmark = [
    pytest.mark.docker,
    pytest.mark.parametrize("cluster", CLUSTERS, indirect=True, scope="module"),
]


@pytest.fixture
def node(cluster: Any) -> Iterator[SSH]:
    with SSH(cluster.allocation, cluster.paths) as ssh:
        yield ssh


@pytest.fixture(autouse=True)
def _healed(node: SSH) -> Iterator[None]:
    yield
    node.run("sudo gpubed-simulate heal", check=False)


def facts(node: SSH) -> Facts:
    folder = paths.assets() / "roles" / "hardware" / "files"
    for name in ("gpubed-facts", "nvidia-gpus.json"):
        node.run("cat > /tmp/%s", name, stdin=(folder / name).read_text(encoding="utf-8"))
    return Facts.model_validate_json(node.run("python3 /tmp/gpubed-facts").stdout)


def install(node: SSH, version: str, *, check: bool = True) -> CommandResult:
    names = " ".join(f"{name}={version}" for name in PACKAGES)
    return node.run(
        f"sudo apt-get install --yes --no-install-recommends --allow-downgrades {names}",
        check=check,
        timeout=300,
    )


def smi(node: SSH, words: str = "-L") -> CommandResult:
    return node.run(f"nvidia-smi {words}", check=False)


def test_gpus_are_on_the_bus_before_any_driver(node: SSH) -> None:
    told = facts(node)
    assert told.simulated == MODEL
    assert [gpu.generation for gpu in told.gpus] == ["Ampere"] * GPUS
    assert all(gpu.index is None for gpu in told.gpus)
    assert told.driver.loaded is None
    assert node.run("lspci -d 10de:").stdout.count("3D controller") == GPUS
    # What is really there is still there.
    assert len(node.run("ls /sys/bus/pci/devices").stdout.split()) > GPUS
    assert node.run("ls -d /sys/module/kernel").exit_code == 0


def test_module_that_is_not_installed_does_not_load(node: SSH) -> None:
    assert "Module nvidia not found" in node.run("sudo modprobe nvidia", check=False).stderr
    assert node.run("sudo modinfo nvidia", check=False).exit_code == 1


def test_driver_is_installed_from_the_archive_and_loaded(node: SSH) -> None:
    node.run("sudo apt-get update --error-on=any", timeout=180)
    install(node, OLD)
    node.run("sudo modprobe nvidia")
    assert node.run("sudo modinfo --field version nvidia").stdout.strip() == OLD.removesuffix("-1")
    assert "Open Kernel Module" in node.run("cat /proc/driver/nvidia/version").stdout
    # Where Slurm 24.11 looks, and falls over what it does not find.
    assert node.run("cat /sys/bus/pci/drivers/nvidia/*/local_cpulist").stdout.count("\n") == GPUS
    numbers = node.run("stat --format=%t:%T /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl").stdout
    assert numbers.split() == ["c3:0", "c3:1", "c3:ff"]
    assert node.run("sudo systemctl restart nvidia-persistenced").exit_code == 0


def test_the_distributions_own_nvidia_smi_answers(node: SSH) -> None:
    assert smi(node).stdout.count("NVIDIA A100-SXM4-80GB") == GPUS
    assert "NV4" in smi(node, "topo -m").stdout
    told = facts(node)
    assert [gpu.index for gpu in told.gpus] == list(range(GPUS))
    assert {gpu.driver for gpu in told.gpus} == {OLD.removesuffix("-1")}
    assert told.gpus[0].links["GPU1"] == "NV4"


@pytest.mark.parametrize(
    ("fault", "query", "shown"),
    [
        ("fallen-off-bus", "-L", "lost"),
        ("xid-79", "-L", "lost"),
        ("requires-reset", "--query-gpu=temperature.gpu --format=csv", "reset"),
        ("throttled", "--query-gpu=clocks_throttle_reasons.hw_slowdown --format=csv", "Active"),
        ("nvlink-down", "nvlink -s -i 1", "Link 0: <inactive>"),
    ],
)
def test_faults_of_a_gpu_show_and_heal(node: SSH, fault: str, query: str, shown: str) -> None:
    assert shown not in smi(node, query).stdout.replace("Not Active", "")
    node.run("sudo gpubed-simulate fault %s --gpu 1", fault)
    answer = smi(node, query)
    assert shown in (answer.stdout + answer.stderr).replace("Not Active", "")
    known = json.loads(node.run("sudo gpubed-simulate status --json").stdout)["faults"]
    assert known == [{"fault": fault, "gpu": 1}]
    node.run("sudo gpubed-simulate heal %s", fault)
    assert smi(node).stdout.count("A100") == GPUS
    assert shown not in smi(node, query).stdout.replace("Not Active", "")


def test_a_double_bit_error_is_counted(node: SSH) -> None:
    query = "--query-gpu=ecc.errors.uncorrected.volatile.total --format=csv,noheader"
    node.run("sudo gpubed-simulate fault ecc-double-bit")
    assert smi(node, query).stdout.split() == ["2", "0"]


@pytest.mark.parametrize(
    ("fault", "xid"),
    [("fallen-off-bus", 79), ("ecc-double-bit", 48), ("nvlink-down", 74), ("requires-reset", 154)],
)
def test_the_kernels_log_has_the_xid(node: SSH, fault: str, xid: int) -> None:
    node.run("sudo gpubed-simulate fault %s --gpu 1", fault)
    time.sleep(1)  # the journal reads by itself
    assert f"NVRM: Xid (PCI:0000:87:00): {xid}, " in node.run(LOG).stdout


def test_what_fell_off_the_bus_reads_as_ones(node: SSH) -> None:
    node.run("sudo gpubed-simulate fault fallen-off-bus --gpu 1")
    assert node.run("lspci -s 87:00.0").stdout.strip().endswith("(rev ff)")
    node.run("sudo gpubed-simulate heal")
    assert node.run("lspci -s 87:00.0").stdout.strip().endswith("(rev a1)")


def test_library_that_is_not_the_modules_is_refused(node: SSH) -> None:
    node.run("sudo gpubed-simulate fault library-mismatch")
    assert "Driver/library version mismatch" in smi(node).stdout
    node.run("sudo gpubed-simulate heal")
    assert smi(node).exit_code == 0


def test_upgrade_needs_the_module_to_be_exchanged(node: SSH) -> None:
    install(node, NEW)
    assert "Driver/library version mismatch" in smi(node).stdout
    held = node.run("sudo modprobe --remove nvidia", check=False)
    assert "Module nvidia is in use" in held.stderr
    node.run("sudo systemctl stop nvidia-persistenced")
    node.run("sudo modprobe --remove nvidia_uvm nvidia_drm nvidia_modeset nvidia")
    assert node.run("ls /dev/nvidia0", check=False).exit_code != 0
    node.run("sudo modprobe nvidia")
    assert facts(node).driver.loaded == NEW.removesuffix("-1")
    assert smi(node).exit_code == 0


def test_module_that_does_not_build_fails_the_installation(node: SSH) -> None:
    failed = install(node, BROKEN, check=False)
    assert failed.exit_code
    assert "Bad return status for module build" in failed.stdout + failed.stderr
    install(node, NEW)
    assert node.run("sudo modinfo --field version nvidia").stdout.strip() == NEW.removesuffix("-1")


def test_kernel_that_is_new_has_no_module_until_it_is_built(node: SSH) -> None:
    node.run("sudo gpubed-simulate fault kernel-update")
    assert node.run("sudo modinfo nvidia", check=False).exit_code == 1
    node.run("sudo dkms autoinstall")
    assert node.run("sudo modinfo nvidia").exit_code == 0
    assert json.loads(node.run("sudo gpubed-simulate status --json").stdout)["faults"] == []


@pytest.mark.long
def test_restart_keeps_driver_and_broken_hardware(cluster: Any, node: SSH) -> None:
    node.run("sudo gpubed-simulate fault fallen-off-bus --gpu 1")
    node.run("sudo gpubed-simulate fault requires-reset --gpu 0")
    made = cluster.node("gpu-0")
    booted = node.run("systemctl show --property=UserspaceTimestamp").stdout
    node.run("sudo systemctl reboot", check=False)
    deadline = time.monotonic() + 60
    while not cluster.read(made)["faults"] and time.monotonic() < deadline:
        time.sleep(0.5)
    cluster.create(made)
    with SSH(cluster.allocation, cluster.paths) as again:
        assert again.run("systemctl show --property=UserspaceTimestamp").stdout != booted
        known = json.loads(again.run("sudo gpubed-simulate status --json").stdout)
        assert known["module"]["loaded"] == NEW.removesuffix("-1")
        assert known["faults"] == [{"fault": "fallen-off-bus", "gpu": 1}]
        # Of this boot: what healed with the restart is said no more. The log may be behind.
        deadline = time.monotonic() + 30
        while "): 79, " not in (said := again.run(LOG).stdout) and time.monotonic() < deadline:
            time.sleep(0.5)
        assert "): 79, " in said
        assert "): 154, " not in said

"""What nodes as virtual machines promise beyond the contract of all backends."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from gpubed.backends.local.runtime import NODE_CACHE
from gpubed.nodes.ssh import SSH
from support.escapes import ESCAPES, Escape

pytestmark = [
    pytest.mark.docker,
    pytest.mark.vms,
    pytest.mark.parametrize("cluster", ["vm"], indirect=True, scope="module"),
]


@pytest.fixture
def head(cluster: Any) -> Iterator[SSH]:
    with SSH(cluster.allocation, cluster.paths) as ssh:
        yield ssh


def container(cluster: Any) -> Any:
    return docker.from_env().containers.get(cluster.allocation.head.id)


def test_machine_has_the_hardware_of_the_specification(head: SSH) -> None:
    assert head.run("systemd-detect-virt --vm").stdout.strip() in ("qemu", "kvm")
    assert head.run("systemd-detect-virt --container", check=False).stdout.strip() == "none"
    assert head.run("nproc").stdout.strip() == "2"
    total = head.run("awk '/^MemTotal/ { print $2 }' /proc/meminfo").stdout
    assert 900 < int(total) / 1024 < 1024


def test_kernel_is_its_own_and_loads_modules(head: SSH) -> None:
    head.run("sudo modprobe rdma_rxe")
    assert "rdma_rxe" in head.run("lsmod").stdout


@pytest.mark.parametrize("escape", ESCAPES, ids=lambda escape: escape.name)
def test_root_gets_no_further_than_to_the_machines_own_kernel(
    head: SSH, escape: Escape, tmp_path: Path
) -> None:
    """Each way is gone to its end, and has its effect: in the machine, and there alone."""
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    before = told()
    disk = os.stat("/").st_dev  # noqa: PTH116
    script = escape.script(escape.play, tmp_path, f"{os.major(disk)} {os.minor(disk)}")
    done = head.run("sudo sh -c %s", script, check=False, timeout=120)
    assert done.stdout.split("\n") == ["played", ""], done.stdout + done.stderr
    time.sleep(1)  # a helper of the kernel is not waited for
    assert list(tmp_path.iterdir()) == [secret]
    assert secret.read_text() == "of the host"
    assert told() == before


def told() -> dict[str, str]:
    """Return what this machine's kernel says of itself that an escape would change."""
    files = ("sys/kernel/core_pattern", "sys/kernel/random/boot_id", "modules")
    return {name: path.read_text() for name in files if (path := Path("/proc", name)).exists()}


def test_its_container_is_an_ordinary_one_with_less(cluster: Any) -> None:
    """What breaks out of the machine finds itself in there."""
    found = container(cluster)
    host = found.attrs["HostConfig"]
    assert host["Privileged"] is False
    assert host["SecurityOpt"] == ["no-new-privileges:true"]  # seccomp, AppArmor: Docker's own
    assert host["CapDrop"] == ["ALL"]
    added = {name.removeprefix("CAP_") for name in host["CapAdd"]}
    assert added == {"NET_ADMIN", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID"}
    devices = {device["PathOnHost"] for device in host["Devices"]}
    assert {"/dev/net/tun"} <= devices <= {"/dev/net/tun", "/dev/kvm"}
    assert host["CgroupnsMode"] == "private"
    assert host["PidMode"] != "host"
    assert host["IpcMode"] != "host"
    assert host["NetworkMode"] != "host"
    assert not [bind for bind in host["Binds"] if "docker.sock" in bind or "cgroup" in bind]
    status = Path(f"/proc/{found.attrs['State']['Pid']}/status").read_text().splitlines()
    assert {"NoNewPrivs:\t1", "Seccomp:\t2"} <= set(status)


def test_a_link_in_the_cache_leads_nowhere(head: SSH) -> None:
    """Another cluster's root may leave one there; its own storage may have some."""
    made = f"sudo sh -c 'cd {NODE_CACHE} && ln -sfn /root escape-test && ls escape-test/'"
    refused = head.run(f"{made}; sudo rm -f {NODE_CACHE}/escape-test", check=False)
    assert "Too many levels of symbolic links" in refused.stderr


def test_packages_can_be_had(head: SSH) -> None:
    assert head.run("sudo apt-get update --error-on=any", timeout=180).exit_code == 0


def test_experiment_link_has_rate_delay_and_mtu(cluster: Any, head: SSH) -> None:
    peer = cluster.allocation.nodes[1].experiment_address
    assert head.run("ping -q -M do -c 1 -s 1372 %s", peer, check=False).exit_code == 0
    assert head.run("ping -q -M do -c 1 -s 1373 %s", peer, check=False).exit_code != 0
    answer = head.run("ping -q -c 5 -i 0.2 %s", peer).stdout
    average_ms = float(answer.rsplit("=", 1)[1].split("/")[1])
    # 50 ms each way.
    assert 100 <= average_ms < 150
    assert "rate 20Mbit" in head.run("sudo tc class show dev eth1").stdout


def test_link_changes_without_a_restart(cluster: Any, head: SSH) -> None:
    made = cluster.node("node-0")
    booted = head.run("cat /proc/sys/kernel/random/boot_id").stdout
    news = {**made.inputs, "link": {**made.inputs["link"], "latency": 0.0, "loss": 0.5}}
    driver = cluster.testbed.driver("node")
    assert driver.update(made.id, made.inputs, news) == made.result
    shaped = head.run("sudo tc qdisc show dev eth1").stdout
    assert "loss 50%" in shaped
    assert "delay" not in shaped
    assert head.run("cat /proc/sys/kernel/random/boot_id").stdout == booted
    driver.update(made.id, news, made.inputs)


def test_other_memory_is_a_new_start_and_keeps_the_disk(cluster: Any, head: SSH) -> None:
    made = cluster.node("node-0")
    head.run("sudo sh -c 'echo kept > /root/file'")
    driver = cluster.testbed.driver("node")
    news = {**made.inputs, "memory": 768 * 2**20}
    assert list(driver.diff(made.result, made.inputs, news).update) == ["memory"]
    assert driver.update(made.id, made.inputs, news) == made.result
    assert head.run("sudo cat /root/file").stdout == "kept\n"
    assert int(head.run("awk '/^MemTotal/ { print $2 }' /proc/meminfo").stdout) < 768 * 1024


def test_machine_that_lost_its_power_comes_back_as_it_was(cluster: Any, head: SSH) -> None:
    made = cluster.node("node-0")
    head.run("sudo sh -c 'echo synced > /root/file && sync'")
    container(cluster).kill()
    assert cluster.testbed.describe(cluster.allocation)["node-0"] == "stopped"
    found = cluster.read(made)
    assert found == {**made.result, "faults": ["exited"]}
    before = (made.id, made.result)
    cluster.create(made)
    assert (made.id, made.result) == before
    assert head.run("sudo cat /root/file").stdout == "synced\n"
    assert "rate 20Mbit" in head.run("sudo tc class show dev eth1").stdout

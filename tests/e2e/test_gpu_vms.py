"""The way of a GPU cluster on virtual machines: with kernels, and reboots, of their own.

Shorter than on containers, and without the services. Where machines are emulated, what jobs
compute with takes hours to install: then it is left out, and with it what needs it.
GPUBED_VM=1 runs what fits the machine, GPUBED_VM=whole all of it.
"""

import os
import re
import time

import pytest

from gpubed.core import paths
from support.cluster import Cluster, unique
from support.gpu_cluster import checks, group, standing

pytestmark = [
    pytest.mark.simulated,
    pytest.mark.vms,
    pytest.mark.e2e,
    pytest.mark.docker,
    pytest.mark.timeout(7200),
]

NODE, GPUS = "gpu-0", 2
# What virtual machines have and containers lack, a kernel of their own, is the business of these.
OF_THE_KERNEL = "base,ssh_mesh,hardware,nvidia_driver,cuda,nccl,firewall,health"


@pytest.fixture(scope="module")
def cluster(docker, tmp_path_factory):
    if not os.environ.get("GPUBED_VM"):
        pytest.skip("virtual machines take minutes where KVM does not work: set GPUBED_VM=1")
    made = Cluster(
        tmp_path_factory.mktemp("gpuvm"),
        unique("gpuvm"),
        backend={"type": "local", "runtime": "vm"},
        nodes=[group("T4", GPUS)],
        recipe="cuda13",
        configure=False,
    )
    own = made.spec_path.parent / "group_vars" / "all" / "ours.yml"
    own.parent.mkdir(parents=True)
    own.write_text("base_time_sync: none\n")  # no time server may be in reach of a test
    with standing(made):
        made.edit(lambda spec: spec.update(configure=True))
        if is_whole():
            made.first_up = made.json("up")
        else:
            made.call("configure", "--tags", OF_THE_KERNEL)
        yield made


def is_whole():
    """Say whether there is time for all of it; whether KVM works is known once machines are up."""
    known = paths.cache() / "kvm"
    works = known.exists() and known.read_text().endswith("works")
    return works or os.environ["GPUBED_VM"] == "whole"


@pytest.fixture
def whole(cluster):
    return is_whole()


def require(whole):
    if not whole:
        pytest.skip("emulated here, torch and Horovod take hours to install: GPUBED_VM=whole")


def test_the_driver_is_built_for_the_machines_own_kernel(cluster):
    assert re.search(r"\bT4\b", cluster.node(NODE, "nvidia-smi --list-gpus"))
    kernel = cluster.node(NODE, "uname -r").strip()
    assert re.search(
        rf"nvidia.*{re.escape(kernel)}.*installed", cluster.node(NODE, "sudo dkms status")
    )
    assert cluster.json("health")["nodes"][0]["state"] == "well"


def test_up_ends_in_a_verified_cluster_without_a_real_pass(cluster, whole):
    require(whole)
    assert cluster.first_up["verification"]["failed"] == 0
    about = {c["id"]: c["result"] for c in checks(cluster.first_up) if c["id"].startswith("gpu.")}
    assert {"gpu.count", "gpu.driver", "gpu.compute", "gpu.memory"} <= set(about)
    assert set(about.values()) <= {"simulated", "skip"}


def test_a_job_has_a_rank_per_gpu(cluster, whole):
    require(whole)
    result = cluster.json("run", "digits", "--set", "epochs=12")
    assert (result["status"], result["world_size"]) == ("ok", GPUS)
    assert result["simulated"] is True


def test_a_kernel_without_its_module_is_found_and_a_reboot_with_one_heals(cluster, whole):
    cluster.node(NODE, "sudo gpubed-simulate fault kernel-update")
    cluster.node(NODE, "sudo gpubed-health watch; sudo gpubed-health watch")
    found = cluster.json("health", rc=1)["nodes"][0]
    assert found["state"] == "quarantined"
    assert re.search("module", found["quarantine"]["reason"])
    cluster.node(NODE, "sudo dkms autoinstall")
    reboot(cluster)
    assert re.search(r"\bT4\b", cluster.node(NODE, "nvidia-smi --list-gpus"))
    assert cluster.json("health", "--requalify", NODE)["nodes"][0]["state"] == "well"
    if whole:
        assert cluster.json("up")["verification"]["failed"] == 0


def reboot(cluster):
    """Restart the machine, and wait until it has started another time."""
    ask = "cat /proc/sys/kernel/random/boot_id"
    before = cluster.node(NODE, ask)
    cluster.node(NODE, "sudo systemd-run --quiet --on-active=1 systemctl reboot")
    end = time.monotonic() + 600
    while time.monotonic() < end:
        try:
            if cluster.node(NODE, ask) != before:
                return
        except AssertionError:
            pass  # it does not answer yet
        time.sleep(5)
    pytest.fail("the machine did not come back within 10 minutes")

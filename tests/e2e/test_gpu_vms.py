"""The whole way of a GPU cluster on virtual machines: with kernels, and reboots, of their own.

Shorter than on containers, and without the services: machines may be emulated, and all of it
takes ten times as long then.
"""

import os
import re
import time

import pytest

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


@pytest.fixture(scope="module")
def cluster(docker, tmp_path_factory):
    if os.environ.get("GPUBED_VM") != "1":
        pytest.skip("virtual machines take minutes where KVM does not work: set GPUBED_VM=1")
    made = Cluster(
        tmp_path_factory.mktemp("gpuvm"),
        unique("gpuvm"),
        backend={"type": "local", "runtime": "vm"},
        nodes=[group("T4", GPUS)],
        recipe="cuda13",
    )
    own = made.spec_path.parent / "group_vars" / "all" / "ours.yml"
    own.parent.mkdir(parents=True)
    own.write_text("base_time_sync: none\n")  # no time server may be in reach of a test
    with standing(made):
        yield made


def test_up_ends_in_a_verified_cluster_without_a_real_pass(cluster):
    assert cluster.first_up["verification"]["failed"] == 0
    about = {c["id"]: c["result"] for c in checks(cluster.first_up) if c["id"].startswith("gpu.")}
    assert {"gpu.count", "gpu.driver", "gpu.compute", "gpu.memory"} <= set(about)
    assert set(about.values()) <= {"simulated", "skip"}


def test_a_job_has_a_rank_per_gpu(cluster):
    result = cluster.json("run", "digits", "--set", "epochs=12")
    assert (result["status"], result["world_size"]) == ("ok", GPUS)
    assert result["simulated"] is True


def test_a_kernel_without_its_module_is_found_and_a_reboot_with_one_heals(cluster):
    cluster.node(NODE, "sudo gpubed-simulate fault kernel-update")
    cluster.node(NODE, "sudo gpubed-health watch; sudo gpubed-health watch")
    found = cluster.json("health", rc=1)["nodes"][0]
    assert found["state"] == "quarantined"
    assert re.search("module", found["quarantine"]["reason"])
    cluster.node(NODE, "sudo dkms autoinstall")
    reboot(cluster)
    assert re.search(r"\bT4\b", cluster.node(NODE, "nvidia-smi --list-gpus"))
    assert cluster.json("health", "--requalify", NODE)["nodes"][0]["state"] == "well"
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

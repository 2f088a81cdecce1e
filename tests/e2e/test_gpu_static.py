"""The same pretended GPUs on own hosts: the static backend takes them for what they show."""

import pytest

from support import own
from support.cluster import Cluster, unique
from support.everywhere import SUBNET
from support.gpu_cluster import MACHINE, SERVICES, checks, group, pin_driver, standing

pytestmark = [pytest.mark.simulated, pytest.mark.e2e, pytest.mark.docker]


@pytest.fixture(scope="module")
def ground(docker, tmp_path_factory):
    """Two hosts with GPUs that somebody else installed, without a driver."""
    made = Cluster(
        tmp_path_factory.mktemp("ground"),
        unique("gpuhosts"),
        nodes=[group("A100-SXM4-80GB", 2, count=2, has=4)],
        networks={"experiment": {"subnet": SUBNET, "rate": "200 Mbit/s"}},
        recipe="cuda13",
        configure=False,
    )
    with standing(made):
        yield made


@pytest.fixture(scope="module")
def cluster(ground, tmp_path_factory):
    root = tmp_path_factory.mktemp("own")
    made = Cluster(
        root,
        unique("gpuown"),
        backend=own.backend(ground, root, "gpu"),
        nodes=[{"name": "gpu", "count": 2, "gpus": 2, "machine": MACHINE}],
        networks={"experiment": {"subnet": SUBNET, "rate": "200 Mbit/s"}},
        storage={"shared": {"provider": "volume"}},
        recipe="cuda13",
        services=SERVICES,
    )
    with standing(made):
        yield made


def test_own_hosts_become_a_verified_gpu_cluster(cluster):
    found = cluster.first_up["verification"]
    assert found["failed"] == 0
    assert {c["result"] for c in checks(cluster.first_up) if c["id"].startswith("gpu.")} == {
        "simulated"
    }


def test_a_rank_per_gpu_that_was_asked_for(cluster):
    result = cluster.json("run", "digits", "--set", "epochs=20")
    assert (result["status"], result["world_size"], result["simulated"]) == ("ok", 4, True)


def test_a_driver_is_upgraded_without_a_reboot_that_nobody_allowed(cluster):
    assert pin_driver(cluster, "580.82.07")["verification"]["failed"] == 0
    assert pin_driver(cluster, "580.65.06")["verification"]["failed"] == 0

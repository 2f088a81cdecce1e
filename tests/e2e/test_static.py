"""Own hosts behind a bastion: looked at first, then a verified cluster, then as they were.

The hosts are bare nodes of a local cluster; their user's key and known hosts are a user's.
"""

import json

import pytest

from e2e.conftest import unique
from support.cluster import Cluster

pytestmark = [pytest.mark.testbeds, pytest.mark.e2e, pytest.mark.docker]

MACHINE = {"cpus": 1, "memory": "3 GiB"}
SUBNET = "10.127.208.0/24"


@pytest.fixture(scope="module")
def ground(docker, tmp_path_factory):
    """Two hosts and a gate, installed by somebody else."""
    made = Cluster(
        tmp_path_factory.mktemp("ground"),
        unique("ground"),
        nodes=[
            {"name": "node", "count": 2, "machine": MACHINE},
            {"name": "gate", "count": 1, "machine": {"cpus": 1, "memory": "512 MiB"}},
        ],
        networks={
            "control": {"subnet": "10.127.207.0/24"},
            "experiment": {"subnet": SUBNET, "rate": "100 Mbit/s"},
        },
        configure=False,
    )
    try:
        made.call("up")
        yield made
    finally:
        made.call("down", "-y")


@pytest.fixture(scope="module")
def cluster(ground, tmp_path_factory):
    """The lab's specification with another backend block."""
    allocation = json.loads((ground.state / "allocation.json").read_text())
    *hosts, gate = allocation["nodes"]
    root = tmp_path_factory.mktemp("own")
    known = root / "known_hosts"
    with known.open("w") as file:
        for node in allocation["nodes"]:
            file.writelines(f"{node['control_address']} {key}\n" for key in node["host_keys"])
    made = Cluster(
        root,
        unique("own"),
        backend={
            "type": "static",
            "user": "gpubed",
            "key": str(ground.state / "secrets" / "id_ed25519"),
            "known_hosts": str(known),
            "bastions": [{"address": gate["control_address"]}],
            "hosts": {
                "node": [
                    {"address": n["control_address"], "experiment_address": n["experiment_address"]}
                    for n in hosts
                ]
            },
        },
        nodes=[{"name": "node", "count": 2}],
        networks={"experiment": {"subnet": SUBNET, "rate": "100 Mbit/s"}},
        storage={"shared": {"provider": "volume"}},
    )
    try:
        yield made
    finally:
        made.call("down", "-y")


def keys(ground):
    return [ground.node(n, "cat .ssh/authorized_keys").splitlines() for n in ("node-0", "node-1")]


def test_an_unknown_host_key_is_refused_before_anything_changes(cluster, ground):
    before, spec = keys(ground), cluster.spec
    empty = cluster.root / "empty"
    empty.touch()
    cluster.edit(lambda spec: spec["backend"].update(known_hosts=str(empty)))
    assert "host key of" in cluster.call("up", rc=3).stderr
    cluster.write(spec)
    assert keys(ground) == before


def test_a_host_that_runs_something_else_is_refused_before_anything_changes(cluster, ground):
    before, spec = keys(ground), cluster.spec
    cluster.edit(lambda spec: spec["nodes"][0].update(image="debian-13"))
    assert (
        "runs debian-12, but cluster.yml says image: debian-13" in cluster.call("up", rc=1).stderr
    )
    cluster.write(spec)
    assert keys(ground) == before


def test_own_hosts_become_a_verified_cluster(cluster):
    document = cluster.json("up")
    assert [node["state"] for node in document["nodes"]] == ["ready"] * 2
    assert document["verification"]["failed"] == 0
    assert "nothing to change" in cluster.call("up").stderr
    assert {o["free"] for o in cluster.json("resources")["offers"]} == {0}


def test_a_job_trains_on_them(cluster):
    result = cluster.json("run", "digits", "--set", "epochs=20")
    assert result["world_size"] == 2
    assert result["test_accuracy"] >= 0.97


def test_a_second_cluster_does_not_take_them(cluster):
    other = Cluster(cluster.root, unique("thief"), **cluster.spec)
    assert f"is a node of cluster {cluster.name}" in other.call("up", rc=1).stderr
    other.call("down", "-y")


def test_down_leaves_the_hosts_as_they_were_but_for_packages(cluster, ground):
    cluster.call("down", "-y")
    assert all(len(lines) == 1 for lines in keys(ground)), "only the user's own key"
    for node in ("node-0", "node-1"):
        left = "ls /etc/gpubed/owner.json; systemctl is-active jupyterlab gpubed-firewall"
        assert "owner.json\n" not in ground.node(node, f"{left} 2>/dev/null; true")
        assert "inet gpubed" not in ground.node(node, "sudo nft list tables")

"""Own hosts behind a bastion: looked at first, then a verified cluster, then as they were.

The hosts are bare nodes of a local cluster; their user's key and known hosts are a user's.
"""

import json
import socket
import subprocess
from urllib.parse import urlsplit

import pytest

from support import howto, own
from support.cluster import Cluster, unique
from support.everywhere import EVERYWHERE, SUBNET, becomes_a_cluster_that_trains

pytestmark = [pytest.mark.testbeds, pytest.mark.e2e, pytest.mark.docker]

MACHINE = {"cpus": 1, "memory": "3 GiB"}
CONTROL = "10.200.207.0/24"
# Nothing of this machine gets to the hosts: the gate is the only way.
SHUT = """
nft -f - << END
table ip owner {
  chain input {
    type filter hook input priority -10;
    ct state new ip saddr { 10.200.207.1, 10.200.208.1 } drop
  }
}
END
"""


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
            "control": {"subnet": CONTROL},
            "experiment": {"subnet": SUBNET, "rate": "100 Mbit/s"},
        },
        configure=False,
    )
    try:
        made.call("up")
        for name in HOSTS:
            on_host(made, name, SHUT)
        yield made
    finally:
        made.call("down", "-y")


@pytest.fixture(scope="module")
def cluster(ground, tmp_path_factory):
    """The lab's specification with another backend block."""
    root = tmp_path_factory.mktemp("own")
    made = Cluster(root, unique("own"), backend=own.backend(ground, root, "node"), **EVERYWHERE)
    try:
        yield made
    finally:
        made.call("down", "-y")


HOSTS = ("node-0", "node-1")


def on_host(ground, name, command):
    """Run a command on a host as root, past its network: what its owner sees."""
    nodes = json.loads((ground.state / "allocation.json").read_text())["nodes"]
    id_ = {node["name"]: node["id"] for node in nodes}[name]
    done = subprocess.run(
        ["docker", "exec", id_, "sh", "-c", command], capture_output=True, text=True, check=True
    )
    return done.stdout


def keys(ground):
    read = "cat ~gpubed/.ssh/authorized_keys"
    return [on_host(ground, name, read).splitlines() for name in HOSTS]


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
        "runs debian-12, but cluster.yml says image: debian-13" in cluster.call("up", rc=3).stderr
    )
    cluster.write(spec)
    assert keys(ground) == before


def test_own_hosts_become_a_verified_cluster(cluster):
    becomes_a_cluster_that_trains(cluster, cluster.json("up"))
    assert "nothing to change" in cluster.call("up").stderr
    assert {o["free"] for o in cluster.json("resources")["offers"]} == {0}


def test_all_of_it_went_through_the_gate(cluster):
    status = cluster.json("status")
    assert status["services"][0]["url"].startswith("https://localhost:")
    checks = {c["id"]: c for c in status["verification"]["checks"]}
    assert checks["firewall.closed"]["result"] == "pass"
    printed = cluster.call("open", "--print")
    tunnel = printed.stderr.split("first: ")[1].split()
    port = urlsplit(printed.stdout.strip()).port
    with pytest.raises(OSError, match="timed out"):
        socket.create_connection((status["nodes"][0]["control_address"], port), timeout=3)
    process = subprocess.Popen(tunnel)
    try:
        ask = ["curl", "-sS", "--retry", "20", "--retry-connrefused", "--retry-delay", "1"]
        ask += ["--cacert", str(cluster.state / "jupyterlab.crt"), "-K", "-"]
        url = printed.stdout.strip().replace("/lab?", "/api/status?")
        done = subprocess.run(
            ask, input=f'url = "{url}"', capture_output=True, text=True, check=False
        )
        assert "last_activity" in done.stdout, done.stderr
    finally:
        process.terminate()
        process.wait()


def test_a_second_cluster_does_not_take_them(cluster):
    other = Cluster(cluster.root, unique("thief"), **cluster.spec)
    assert f"is a node of cluster {cluster.name}" in other.call("up", rc=3).stderr
    other.call("down", "-y")


def test_every_command_of_the_how_to_page_does_what_it_says(cluster, tmp_path):
    said = howto.follow(cluster, "own-hosts.md", "own", tmp_path)
    assert "digits: ok, world size 2" in said


def test_down_left_the_hosts_as_they_were_but_for_packages(ground):
    """The page ends with it."""
    assert all(len(lines) == 1 for lines in keys(ground)), "only the user's own key"
    for name in HOSTS:
        assert "missing" in on_host(ground, name, "ls /etc/gpubed/owner.json || echo missing")
        active = on_host(ground, name, "systemctl is-active jupyterlab gpubed-health.timer; true")
        assert "active" not in active.split()
        assert "inet gpubed" not in on_host(ground, name, "nft list tables")

"""Two hosts that their owner prepared: with all services up, and as they were after `down`.

The hosts are bare nodes of a local cluster.
"""

import subprocess

import pytest

from support import own, whole_host
from support.cluster import Cluster, unique

pytestmark = [pytest.mark.testbeds, pytest.mark.e2e, pytest.mark.docker]

HOSTS = ("node-0", "node-1")
SUBNET = "10.200.212.0/24"
PREPARED = """
printf '10.1.2.3 node-0 gpu1 # asset 4711\\n' >> /etc/hosts
mkdir -p /etc/docker
echo '{"bip": "172.30.0.1/16", "log-driver": "json-file"}' > /etc/docker/daemon.json
chmod 640 /etc/docker/daemon.json
useradd --create-home alice
echo '# the fstab of the owner' >> /etc/fstab
echo 'export OWNERS=1' > /etc/profile.d/owner.sh
apt-get -qq update
apt-get -qq install -y --no-install-recommends cron htop >/dev/null
apt-mark hold htop
"""
DATA = [
    *("/var/lib/containerd", "/var/lib/docker", "/var/lib/mysql", "/var/lib/prometheus"),
    "/var/lib/slurm",
]


@pytest.fixture(scope="module")
def ground(docker, tmp_path_factory):
    machine = {"cpus": 2, "memory": "3 GiB"}
    made = Cluster(
        tmp_path_factory.mktemp("ground"),
        unique("ground"),
        nodes=[{"name": "node", "count": 2, "machine": machine}],
        networks={
            "control": {"subnet": "10.200.211.0/24"},
            "experiment": {"subnet": SUBNET, "rate": "100 Mbit/s"},
        },
        configure=False,
    )
    try:
        made.call("up")
        yield made
    finally:
        made.call("down", "-y")


def on(ground, name, *words, text=None):
    """Run a program on a host as root, past its network: what its owner sees."""
    id_ = {n["name"]: n["id"] for n in ground.json("status")["nodes"]}[name]
    command = ["docker", "exec", "-i", id_, *words]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def states(ground):
    return {
        name: whole_host.state(
            lambda program, name=name: on(ground, name, "python3", "-c", program)
        )
        for name in HOSTS
    }


def test_hosts_are_as_they_were(ground, tmp_path):
    backend = own.backend(ground, tmp_path, "node")
    for name in HOSTS:
        on(ground, name, "sh", "-es", text=PREPARED)
    before = states(ground)
    cluster = Cluster(
        tmp_path,
        unique("own"),
        backend=backend,
        nodes=[{"name": "node", "count": 2}],
        networks={"experiment": {"subnet": SUBNET, "rate": "100 Mbit/s"}},
        storage={"shared": {"provider": "volume"}},
        services={
            "jupyterlab": {},
            "docker": {},
            "monitoring": {},
            "slurm": {"users": [{"name": "bob", "uid": 12001}]},
        },
    )
    try:
        assert cluster.json("up")["state"] == "ready"
        assert "172.30.0.1" in on(ground, "node-0", "ip", "address", "show", "docker0")
        on(ground, "node-0", "sh", "-c", "echo 10.9.9.9 later >> /etc/hosts")
    finally:
        done = cluster.call("down", "-y")
    assert "hold data and stay" in done.stderr
    after = states(ground)
    assert whole_host.differences(before["node-1"], after["node-1"], data=DATA) == []
    [hosts] = whole_host.differences(before["node-0"], after["node-0"], data=DATA)
    assert hosts.startswith("files: /etc/hosts was")
    lines = on(ground, "node-0", "cat", "/etc/hosts").splitlines()
    assert lines[-2:] == ["10.1.2.3 node-0 gpu1 # asset 4711", "10.9.9.9 later"]

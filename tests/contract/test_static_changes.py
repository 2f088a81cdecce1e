"""Changes of a running cluster of own hosts: planned first, then done, by every engine.

Hosts are bare nodes of a local cluster. The tests use one cluster per engine, in this order.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support import changes, own
from support.changes import GONE, put
from support.cluster import Cluster, unique
from support.taint import taint

pytestmark = [pytest.mark.testbeds, pytest.mark.docker]

MEANS = changes.of("static")
DONE, REFUSED = changes.done("static")
STAYS = "its host leaves the cluster, and what is on its disks stays"
CONTROL, EXPERIMENT = "10.127.235.0/24", "10.127.236.0/24"
HOSTS = ("node-0", "node-1", "node-2")
ADMIN = """
useradd --create-home --password '*' admin
echo 'admin ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/admin
install -d -o admin -m 700 ~admin/.ssh
install -o admin -m 600 ~gpubed/.ssh/authorized_keys ~admin/.ssh/authorized_keys
allowed="AllowUsers admin gpubed jupyter"
printf "Port 22\\nPort 2222\\n$allowed\\n" > /etc/ssh/sshd_config.d/owner.conf
systemctl restart ssh
echo 42 > /root/results
"""


@dataclass
class Ground:
    """Three hosts and a gate, installed by somebody else."""

    cluster: Cluster
    backend: dict
    folder: Path

    def on_host(self, name, command):
        """Run a command on a host as root, past its network: what its owner does."""
        words = ["docker", "exec", self._id(name), "sh", "-c", command]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout

    @contextmanager
    def silent(self, name):
        """Let a host answer nobody, as one that has died."""
        id_ = self._id(name)
        subprocess.run(["docker", "pause", id_], check=True, capture_output=True)
        try:
            yield
        finally:
            subprocess.run(["docker", "unpause", id_], check=True, capture_output=True)

    def _id(self, name):
        nodes = json.loads((self.cluster.state / "allocation.json").read_text())["nodes"]
        [id_] = [node["id"] for node in nodes if node["name"] == name]
        return id_

    def host(self, index):
        return dict(self.backend["hosts"]["node"][index])

    def there(self):
        """Return the nodes that hosts are marked as: id and host by name; others' marks aside."""
        look = "cat /etc/gpubed/owner.json 2> /dev/null || true"
        marks = {name: json.loads(self.on_host(name, look) or "{}") for name in HOSTS}
        return {
            mark["node"]: (mark["id"], name)
            for name, mark in marks.items()
            if mark.get("cluster") not in (None, "theirs")
        }

    def admitted(self, user):
        """Return the hosts where a user's account lets a cluster in."""
        look = f"grep -c ' gpubed:' ~{user}/.ssh/authorized_keys || true"
        return {name for name in HOSTS if self.on_host(name, look) == "1\n"}


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    small = {"cpus": 1, "memory": "512 MiB"}
    made = Cluster(
        tmp_path_factory.mktemp("ground"),
        unique("ground"),
        nodes=[
            {"name": "node", "count": len(HOSTS), "machine": small},
            {"name": "gate", "count": 1, "machine": small},
        ],
        networks={
            "control": {"subnet": CONTROL},
            "experiment": {"subnet": EXPERIMENT, "rate": "100 Mbit/s"},
        },
        configure=False,
    )
    try:
        made.call("up")
        folder = tmp_path_factory.mktemp("user")
        found = Ground(made, own.backend(made, folder, "node"), folder)
        known = folder / "known_hosts"
        ports = [f"[{line.replace(' ', ']:2222 ', 1)}" for line in known.read_text().splitlines()]
        known.write_text(known.read_text() + "\n".join(ports) + "\n")
        for name in (*HOSTS, "gate-0"):
            found.on_host(name, ADMIN)
        yield found
    finally:
        made.call("down", "-y")


@pytest.fixture(scope="module", params=changes.ENGINES)
def cluster(request, ground, tmp_path_factory):
    made = Cluster(
        tmp_path_factory.mktemp("own"),
        unique("own"),
        backend=ground.backend,
        nodes=[{"name": "node", "count": 2}],
        networks={"experiment": {"subnet": EXPERIMENT, "rate": "100 Mbit/s"}},
        configure=False,
    )
    made.engine = ("--engine", request.param)
    try:
        made.json("up", *made.engine)
        yield made
    finally:
        made.call("down", "-y", *made.engine)
    assert ground.there() == {}
    assert not ground.admitted("gpubed") | ground.admitted("admin")


def hosts(spec, *wanted):
    spec["backend"]["hosts"]["node"] = list(wanted)
    spec["nodes"][0]["count"] = len(wanted)


def way(spec, ground):
    """The key and the list of known hosts are elsewhere by now, and the gate is gone."""
    for key in ("key", "known_hosts"):
        moved = ground.folder / f"moved-{key}"
        shutil.copy(spec["backend"][key], moved)
        spec["backend"][key] = str(moved)
    spec["backend"]["bastions"] = []


def away(spec, ground):
    """Its key is known; it does not answer."""
    known = Path(spec["backend"]["known_hosts"])
    line = known.read_text().split(maxsplit=1)[1].splitlines()[0]
    known.write_text(f"{known.read_text()}10.127.235.250 {line}\n")
    hosts(spec, ground.host(1) | {"address": "10.127.235.250"})


def taken(spec, ground):
    mark = {"uuid": str(uuid.uuid4()), "cluster": "theirs", "node": "node-0", "id": "node-0-1"}
    ground.on_host("node-2", f"echo '{json.dumps(mark)}' > /etc/gpubed/owner.json")
    hosts(spec, ground.host(2))


CHANGES = {
    "more nodes": put({"nodes.0.count": 3}),
    "key, known_hosts, bastions": way,
    "user": put({"backend.user": "admin"}),
    "user: the former one": put({"backend.user": "gpubed"}),
    "port": lambda spec, _: [h.update(port=2222) for h in spec["backend"]["hosts"]["node"]],
    "rate, mtu": put({"networks.experiment.rate": "1 Gbit/s", "networks.experiment.mtu": 1400}),
    "services, firewall, storage, recipe": put(
        {
            "services": {"jupyterlab": {"port": 9000}, "monitoring": {}},
            "firewall": {"open": [{"port": 8080}]},
            "storage": {"shared": {"path": "/results"}},
            "recipe": "cuda13",
        }
    ),
    "no experiment network": put({"networks": {"control": {"subnet": CONTROL}}}),
    "an experiment network": put(
        {"networks": {"experiment": {"subnet": EXPERIMENT, "rate": "1 Gbit/s"}}}
    ),
    "min, on_failure": put({"nodes.0.min": 1, "nodes.0.on_failure": "leave_out"}),
    "min, on_failure: all are needed": put({"nodes.0.min": GONE, "nodes.0.on_failure": GONE}),
    "fewer nodes": put({"nodes.0.count": 2}),
    "another host": lambda spec, ground: hosts(spec, ground.host(0), ground.host(2)),
    "hosts in another order": lambda spec, ground: hosts(spec, ground.host(2), ground.host(0)),
    "the first host is left out": lambda spec, ground: hosts(spec, ground.host(0)),
    "a host that does not answer": away,
    "a host of another cluster": taken,
    "an image that hosts do not run": put({"nodes.0.image": "debian-13"}),
    "more GPUs than hosts have": put({"nodes.0.gpus": 8, "recipe": "cuda13"}),
}


def test_every_change_of_the_matrix_is_made():
    assert [*CHANGES] == [*MEANS]


@pytest.mark.parametrize("change", DONE)
def test_a_change_is_planned_and_done_as_planned(ground, cluster, change):
    changes.make(
        cluster, ground.there, lambda spec: CHANGES[change](spec, ground), MEANS[change], STAYS
    )
    nodes = cluster.spec["nodes"][0]["count"]
    assert [cluster.node(f"node-{index}", "true") for index in range(nodes)] == [""] * nodes
    name, *others = sorted({"gpubed", "admin"}, key=cluster.spec["backend"]["user"].__ne__)
    assert ground.admitted(name) == {host for _, host in ground.there().values()}
    assert not any(map(ground.admitted, others)), "a key that nobody needs any more"
    assert [ground.on_host(host, "cat /root/results") for host in HOSTS] == ["42\n"] * 3


@pytest.mark.parametrize("change", REFUSED)
def test_a_change_that_cannot_be_is_refused_before_anything_goes(ground, cluster, change):
    try:
        said = changes.refuse(cluster, ground.there, lambda spec: CHANGES[change](spec, ground))
    finally:
        ground.on_host("node-2", "sed -i /theirs/d /etc/gpubed/owner.json 2> /dev/null || true")
    assert "node-0" in said
    assert cluster.node("node-0", "true") == ""


@pytest.mark.parametrize("name", ["node-1", "identity", "key", "configuration"])
def test_a_forced_replacement_leaves_a_whole_cluster(ground, cluster, name):
    """`pulumi up --replace` and `pulumi state taint`: nobody asks the driver."""
    cluster.edit(lambda spec: hosts(spec, ground.host(0), ground.host(1)))
    cluster.call("up", "-y", *cluster.engine)
    before = {node: host for node, (_, host) in ground.there().items()}
    taint(cluster, name)
    cluster.call("up", "-y", *cluster.engine)
    assert {node: host for node, (_, host) in ground.there().items()} == before
    assert cluster.json("plan", *cluster.engine)["changes"] == []
    found = cluster.json("audit", *cluster.engine)
    assert (found["missing"], found["unrecorded"]) == ([], [])
    assert [cluster.node(node, "true") for node in before] == [""] * 2


@pytest.mark.parametrize("gone", [".gpubed/pulumi", ".gpubed"])
def test_a_lost_state_is_taken_over(ground, cluster, gone):
    """With the cluster's key, too: hosts are opened by their owner's."""
    cluster.edit(lambda spec: hosts(spec, ground.host(0), ground.host(1)))
    cluster.call("up", "-y", *cluster.engine)
    before, uuid_ = ground.there(), cluster.json("audit", *cluster.engine)["uuid"]
    shutil.rmtree(cluster.root / gone)
    if gone == ".gpubed":
        assert uuid_ in cluster.call("up", *cluster.engine, rc=2).stderr
        cluster.call("audit", "--adopt", "--uuid", uuid_, "-y", *cluster.engine)
    else:
        cluster.call("up", "-y", *cluster.engine)
    assert ground.there() == before
    found = cluster.json("audit", *cluster.engine)
    assert found["uuid"] == uuid_
    assert (found["missing"], found["unrecorded"], found["others"]) == ([], [], [])
    assert [cluster.node(node, "true") for node in before] == [""] * 2
    assert [ground.on_host(host, "cat /root/results") for host in HOSTS] == ["42\n"] * 3


def test_a_host_that_died_holds_nothing_up_once_the_specification_does_without_it(ground, cluster):
    cluster.edit(lambda spec: hosts(spec, ground.host(0), ground.host(1)))
    cluster.call("up", "-y", *cluster.engine)
    with ground.silent("node-1"):
        assert "node-1 is away" in cluster.call("up", "-y", *cluster.engine, rc=1).stderr
        assert "remove it from hosts in" in cluster.call("down", "-y", *cluster.engine, rc=1).stderr
        cluster.edit(lambda spec: hosts(spec, ground.host(0)))
        said = cluster.call("down", "-y", *cluster.engine).stderr
    assert [host for _, host in ground.there().values()] == ["node-1"]
    commands = re.search("sudo sh /etc/gpubed/release [0-9a-f-]+", said)
    ground.on_host("node-1", f"su - gpubed -c {shlex.quote(commands[0])}")
    assert ground.there() == {}
    assert ground.admitted("gpubed") == set()
    cluster.call("up", *cluster.engine)


def test_a_fault_elsewhere_in_the_specification_keeps_no_host(ground, cluster):
    """`down` needs to know which hosts there are, and no more."""
    right = cluster.spec
    cluster.edit(lambda spec: spec.update(nodse=1))
    cluster.call("down", "-y", *cluster.engine)
    assert ground.there() == {}
    cluster.write(right)
    cluster.call("up", *cluster.engine)

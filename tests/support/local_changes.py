"""Changes of a running cluster on this machine, for nodes of either kind.

Nodes are not configured: what roles make of a change is for the tests of whole clusters.
"""

import uuid
from contextlib import contextmanager
from dataclasses import dataclass

import docker
import pytest
from docker.types import IPAMConfig, IPAMPool

from support import changes
from support.cluster import Cluster, labelled, unique

LOSES = "what is on its own disks is lost"
TAKEN = "10.127.231.0/24"
MIB = 2**20


@dataclass
class Local:
    """A cluster with something on its shared storage and on each node's own disk."""

    cluster: Cluster
    runtime: str

    def containers(self):
        """Returns the nodes' containers by name, asked from Docker itself."""
        label = [f"gpubed.name={self.cluster.name}", "gpubed.node"]
        found = docker.from_env().containers.list(
            all=True, filters={"label": label}, ignore_removed=True
        )
        return {container.labels["gpubed.node"]: container for container in found}

    def there(self):
        """Returns id and start of each node."""
        return {n: (c.id, c.attrs["State"]["StartedAt"]) for n, c in self.containers().items()}

    def make(self, change):
        """Makes a change and holds it to the matrix; what it shows is looked at, too."""
        edit, shows = CHANGES[change]
        becomes = changes.of(f"local, {self.runtime}")[change]
        self._write_own()
        before = self.there()
        changes.make(self.cluster, self.there, edit, becomes, LOSES)
        after = self.there()
        same = {name for name in after if before.get(name, ("",))[0] == after[name][0]}
        assert self._own() == same
        assert self._results() == "42\n", "the shared storage outlives every change"
        if shows:
            shows(self)

    def refuse(self, change):
        return changes.refuse(self.cluster, self.there, CHANGES[change][0])

    def begin(self):
        self.cluster.json("up", *self.cluster.engine)
        self._head(f"echo 42 | sudo tee {self._folder}/results")

    @property
    def _folder(self):
        return self.cluster.spec.get("storage", {}).get("shared", {}).get("path", "/shared")

    def _head(self, command):
        first = self.cluster.spec["nodes"][0].get("name", "node")
        return self.cluster.node(f"{first}-0", command)

    def _results(self):
        return self._head(f"cat {self._folder}/results")

    def _write_own(self):
        for name in self.containers():
            self.cluster.node(name, "echo own | sudo tee /root/own && sync")

    def _own(self):
        look = "sudo cat /root/own 2> /dev/null || true"
        return {name for name in self.containers() if self.cluster.node(name, look) == "own\n"}


@contextmanager
def running(runtime, engine, folder):
    """Gives a cluster of two nodes; it is gone afterwards, and nothing of it is left."""
    cluster = Cluster(
        folder,
        unique("changes"),
        backend={"type": "local", "runtime": runtime},
        nodes=[{"name": "node", "count": 2, "machine": {"cpus": 1, "memory": "768 MiB"}}],
        networks={"experiment": {"rate": "200 Mbit/s"}},
        configure=False,
    )
    cluster.engine = ("--engine", engine)
    try:
        local = Local(cluster, runtime)
        local.begin()
        yield local
    finally:
        cluster.call("down", "-y", *cluster.engine)
    assert labelled(cluster.name) == []


@pytest.fixture
def neighbour():
    """A network of somebody else's on this machine."""
    pool = IPAMConfig(pool_configs=[IPAMPool(subnet=TAKEN)])
    network = docker.from_env().networks.create(f"somebody-{uuid.uuid4().hex[:6]}", ipam=pool)
    yield
    network.remove()


def _more(spec):
    spec["nodes"][0]["count"] = 3


def _group_more(spec):
    machine = spec["nodes"][0]["machine"]
    spec["nodes"].append({"name": "more", "count": 1, "machine": machine})


def _limits(spec):
    for group in spec["nodes"]:
        group["machine"] = {"cpus": 2, "memory": "640 MiB"}


def _no_limits(spec):
    for group in spec["nodes"]:
        del group["machine"]


def _limits_again(spec):
    for group in spec["nodes"]:
        group["machine"] = {"cpus": 1, "memory": "768 MiB"}


def _link(spec):
    spec["networks"]["experiment"].update(rate="100 Mbit/s", mtu=1400)


def _latency(spec):
    link = spec["networks"].setdefault("experiment", {"rate": "100 Mbit/s"})
    link.update(latency="20 ms", loss=0.01)


def _services(spec):
    spec["services"] = {"jupyterlab": {"port": 9000}, "monitoring": {}}
    spec["firewall"] = {"open": [{"port": 8080}]}
    spec["recipe"] = "cuda13"


def _docker(spec):
    spec["services"]["docker"] = {}


def _no_docker(spec):
    del spec["services"]["docker"]


def _lease(spec):
    spec["lease"] = {"duration": "5h"}


def _spares(spec):
    spec["nodes"][0].update(min=1, on_failure="leave_out")


def _fewer(spec):
    spec["nodes"][0]["count"] = 2


def _group_less(spec):
    del spec["nodes"][1]


def _image(spec):
    spec["nodes"][0]["image"] = "debian-13"


def _control(spec):
    spec["networks"]["control"] = {"subnet": "10.127.233.0/24"}


def _experiment(spec):
    spec["networks"]["experiment"]["subnet"] = "10.127.234.0/24"


def _one_network(spec):
    del spec["networks"]["experiment"]


def _path(spec):
    spec["storage"] = {"shared": {"path": "/results"}}


def _name(spec):
    spec["nodes"][0]["name"] = "other"


def _group_before(spec):
    machine = {"cpus": 1, "memory": "512 MiB"}
    spec["nodes"].insert(0, {"name": "first", "count": 1, "machine": machine})


def _no_group_before(spec):
    del spec["nodes"][0]


def _simulate(spec):
    spec["nodes"][0].update(gpus=1, simulate="A100-SXM4-80GB")


def _runtime(spec):
    spec["backend"]["runtime"] = "container"
    for key in ("latency", "loss"):
        del spec["networks"]["experiment"][key]


def _cpus(spec):
    spec["nodes"][0]["machine"] = {"cpus": 1000}


def _taken(spec):
    spec["networks"]["control"] = {"subnet": TAKEN}


def _nfs(spec):
    spec.setdefault("storage", {}).setdefault("shared", {})["provider"] = "nfs"


def _shows_limits(local):
    if local.runtime == "vm":
        assert local.cluster.node("node-0", "nproc") == "2\n"
        total = local.cluster.node("node-0", "awk '/^MemTotal/ { print $2 }' /proc/meminfo")
        assert int(total) < 640 * 1024
        return
    for container in local.containers().values():
        host = container.attrs["HostConfig"]
        assert (host["CpuQuota"] / host["CpuPeriod"], host["Memory"]) == (2, 640 * MIB)


def _shows_no_limits(local):
    for container in local.containers().values():
        assert container.attrs["HostConfig"]["CpuQuota"] == -1


def _shows(command, words):
    def look(local):
        assert words in local.cluster.node("head", command)

    return look


# What is changed, and what shows on the nodes that it was.
CHANGES = {
    "more nodes": (_more, None),
    "one group more": (_group_more, None),
    "cpus, memory": (_limits, _shows_limits),
    "cpus, memory: no limit": (_no_limits, _shows_no_limits),
    "cpus, memory: a limit again": (_limits_again, None),
    "rate, mtu": (_link, _shows("sudo tc class show dev eth1; ip link", "rate 100Mbit")),
    "latency, loss": (_latency, _shows("sudo tc qdisc show dev eth1", "delay 20ms")),
    "services, firewall, recipe": (_services, None),
    "Docker on the nodes": (_docker, None),
    "no Docker any more": (_no_docker, None),
    "lease": (_lease, None),
    "min, on_failure": (_spares, None),
    "fewer nodes": (_fewer, None),
    "one group less": (_group_less, None),
    "image": (_image, _shows("cat /etc/os-release", "trixie")),
    "subnet of the control network": (_control, None),
    "subnet of the experiment network": (_experiment, None),
    "no experiment network": (_one_network, None),
    "path of the shared folder": (_path, None),
    "name of a group": (_name, None),
    "one group more, before the others": (_group_before, None),
    "one group less, before the others": (_no_group_before, None),
    "simulated GPUs": (_simulate, None),
    "runtime": (_runtime, None),
    "more CPUs than there are": (_cpus, None),
    "a subnet that is taken": (_taken, None),
    "provider of the shared folder": (_nfs, None),
}

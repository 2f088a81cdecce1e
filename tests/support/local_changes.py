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
from support.changes import GONE, put
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


def _each_group(machine):
    """Return an edit of all groups' machines; without one there are no limits."""

    def edit(spec):
        for group in spec["nodes"]:
            del group["machine"]
            group |= {"machine": machine} if machine else {}

    return edit


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


MACHINE = {"cpus": 1, "memory": "768 MiB"}
MORE = {"name": "more", "count": 1, "machine": MACHINE}
FIRST = {"name": "first", "count": 1, "machine": {"cpus": 1, "memory": "512 MiB"}}
SERVICES = {"jupyterlab": {"port": 9000}, "monitoring": {}}
LINK, SHARED = "networks.experiment", "storage.shared"
# What is changed, and what shows on the nodes that it was.
CHANGES = {
    "more nodes": (put({"nodes.0.count": 3}), None),
    "one group more": (lambda spec: spec["nodes"].append(MORE), None),
    "cpus, memory": (_each_group({"cpus": 2, "memory": "640 MiB"}), _shows_limits),
    "cpus, memory: no limit": (_each_group(None), _shows_no_limits),
    "cpus, memory: a limit again": (_each_group(MACHINE), None),
    "rate, mtu": (
        put({f"{LINK}.rate": "100 Mbit/s", f"{LINK}.mtu": 1400}),
        _shows("sudo tc class show dev eth1; ip link", "rate 100Mbit"),
    ),
    "latency, loss": (
        lambda spec: (
            spec["networks"]
            .setdefault("experiment", {"rate": "100 Mbit/s"})
            .update(latency="20 ms", loss=0.01)
        ),
        _shows("sudo tc qdisc show dev eth1", "delay 20ms"),
    ),
    "services, firewall, recipe": (
        put({"services": SERVICES, "firewall": {"open": [{"port": 8080}]}, "recipe": "cuda13"}),
        None,
    ),
    "Docker on the nodes": (put({"services.docker": {}}), None),
    "no Docker any more": (put({"services.docker": GONE}), None),
    "lease": (put({"lease": {"duration": "5h"}}), None),
    "min, on_failure": (put({"nodes.0.min": 1, "nodes.0.on_failure": "leave_out"}), None),
    "fewer nodes": (put({"nodes.0.count": 2}), None),
    "one group less": (put({"nodes.1": GONE}), None),
    "image": (put({"nodes.0.image": "debian-13"}), _shows("cat /etc/os-release", "trixie")),
    "subnet of the control network": (
        put({"networks.control": {"subnet": "10.127.233.0/24"}}),
        None,
    ),
    "subnet of the experiment network": (put({f"{LINK}.subnet": "10.127.234.0/24"}), None),
    "no experiment network": (put({LINK: GONE}), None),
    "path of the shared folder": (put({"storage": {"shared": {"path": "/results"}}}), None),
    "name of a group": (put({"nodes.0.name": "other"}), None),
    "one group more, before the others": (lambda spec: spec["nodes"].insert(0, FIRST), None),
    "one group less, before the others": (put({"nodes.0": GONE}), None),
    "simulated GPUs": (put({"nodes.0.gpus": 1, "nodes.0.simulate": "A100-SXM4-80GB"}), None),
    # Containers have no latency and no loss.
    "runtime": (
        put({"backend.runtime": "container", f"{LINK}.latency": GONE, f"{LINK}.loss": GONE}),
        None,
    ),
    "more CPUs than there are": (put({"nodes.0.machine": {"cpus": 1000}}), None),
    "a subnet that is taken": (put({"networks.control": {"subnet": TAKEN}}), None),
    "provider of the shared folder": (put({f"{SHARED}.provider": "nfs"}), None),
}

"""A GENI site for a test, with each of its two faces, and a cluster on it."""

from __future__ import annotations

import itertools
import os
import signal
from contextlib import suppress
from typing import Any

import pytest

from gpubed.backends.virtualwall import doctor, transport
from gpubed.backends.virtualwall.drivers import SliceDriver
from gpubed.core.paths import Project
from gpubed.nodes.allocation import Allocation
from support.am import AmServer, Ghosts, Limits, Site, faults
from support.wall import NAME, Wall

NODES = ("node-0", "node-1", "node-2")
# What is kept of a node that was reached once.
KNOWN = {
    "id": "urn:publicid:IDN+wall2.ilabt.example+sliver+1",
    "control_address": "192.0.2.1",
    "experiment_address": None,
    "port": 22,
    "user": "alice",
    "host_keys": ["ssh-ed25519 AAAA"],
    "via": [],
}
GARBLED = (faults.not_xml, faults.not_utf8, lambda: faults.entities("answer"), faults.truncated)
FACES = {"emulab": Site(), "gcf": Site.gcf()}
# What the reference aggregate has not: hardware types, networks.
PLAIN = {"backend": {"hardware": {}}, "networks": {"experiment": None}}
with_hardware_types = pytest.mark.parametrize("server", ["emulab"], indirect=True)


@pytest.fixture(params=FACES)
def server(request, tmp_path):
    """A site that answers as Emulab does, and one as GENI's reference software did."""
    site, nodes = FACES[request.param], Ghosts("wall2.ilabt.example", boot_seconds=0.1)
    with AmServer(tmp_path / "am", site=site, limits=Limits(delete=0.1), nodes=nodes) as made:
        yield made


@pytest.fixture
def wall(server, tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", "")  # so that what a test sets is undone
    monkeypatch.setattr(doctor, "_has_ipv6", lambda: True)  # whatever this machine has
    return a_wall(server, tmp_path, server.user("alice", passphrase="open sesame"))


def a_wall(server, tmp_path, user):
    return Wall(tmp_path / "project", server, user, **(PLAIN if server.site.is_gcf else {}))


@pytest.fixture
def driver(tmp_path):
    return SliceDriver(Project(tmp_path / "project").cluster(NAME))


def up(wall, driver):
    """Bring a slice up and return its id; all nodes must be there."""
    id_, result = driver.create(wall.inputs)
    assert sorted(result["nodes"]) == ["node-0", "node-1", "node-2"]
    assert not [node for node in result["nodes"].values() if "failed" in node]
    return id_


def granted(wall, result):
    """Return what was granted, as far as the aggregate looks at it."""
    slivers = {name: result["nodes"][name]["sliver"] for name in NODES}
    nodes = [
        KNOWN | {"name": name, "id": slivers[name], "group": "node", "role": "worker"}
        for name in NODES
    ]
    known = {"cluster": NAME, "uuid": wall.uuid, "backend": "virtualwall", "nodes": nodes}
    return Allocation.model_validate(known | {"control": {"subnet": "192.0.2.0/24"}})


def three_machines(server, wall):
    """Leave the site three machines for a cluster of five; returns what repairs the others."""
    taken = server.inventory.machines[3:]
    for machine in taken:
        machine.broken = True
    wall.block["hardware"] = {}
    wall.changes["nodes"] = [{"name": "node", "count": 5, "min": 2}]

    def mend():
        for machine in taken:
            machine.broken = False

    return mend


def killed_at(number, work, *, answered):
    """Do the work in a process that is killed at its n-th call: before it is sent, or once
    it was answered. Says whether it came so far."""
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            _kill_self_at(number, answered)
            work()
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert status in (0, signal.SIGKILL), "it ended in another way"
    return status == signal.SIGKILL


def _kill_self_at(number, answered):
    genuine, calls = transport.Endpoint.call, itertools.count(1)

    def call(self, *args: Any, **options: Any) -> Any:
        last = next(calls) == number
        if last and not answered:
            os.kill(os.getpid(), signal.SIGKILL)
        value = genuine(self, *args, **options)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return value

    transport.Endpoint.call = call

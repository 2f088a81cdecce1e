"""`gpubed doctor` on the local backend: each finding can fail, and says what to do."""

from __future__ import annotations

import re
from ipaddress import IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpubed.backends.local import daemon, doctor, image, network
from gpubed.core.errors import PrerequisiteMissing
from gpubed.core.paths import Project
from gpubed.spec import clusterspec
from gpubed.testbeds.base import Finding

LAB = Project(Path("/nowhere")).cluster("lab")  # nothing of it is there yet
INFO: dict[str, Any] = {
    "ServerVersion": "28.0",
    "OperatingSystem": "Debian GNU/Linux 12",
    "SecurityOptions": ["name=seccomp,profile=default"],
    "DockerRootDir": "/",
    "MemoryLimit": True,
    "CpuCfsQuota": True,
    "CgroupVersion": "2",
}


class Docker:
    """A daemon that answers what a test wants."""

    def __init__(self) -> None:
        self.answer = dict(INFO)
        self.api = SimpleNamespace(base_url="http+docker://localhost")
        self.found: list[Any] = []
        self.networks = SimpleNamespace(list=lambda: self.found)
        self.nodes: list[Any] = []
        self.containers = SimpleNamespace(list=lambda **_: self.nodes)

    def info(self) -> dict[str, Any]:
        return self.answer

    def network(self, name: str, subnet: str, labels: dict[str, str]) -> None:
        attrs = {"IPAM": {"Config": [{"Subnet": subnet}]}, "Labels": labels}
        self.found.append(SimpleNamespace(name=name, attrs=attrs))


@pytest.fixture(autouse=True)
def docker(monkeypatch: pytest.MonkeyPatch) -> Docker:
    made = Docker()
    for way in ("client", "look"):
        monkeypatch.setattr(daemon, way, lambda: made)
    monkeypatch.setattr(image, "exists", lambda _: True)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=100 * 10**9))
    monkeypatch.setattr(network, "_routes", lambda: iter(()))
    return made


def find(kind: str, wanted: clusterspec.ClusterSpec | None = None) -> Finding:
    found = next(finding for finding in doctor.findings(wanted, LAB) if finding.id == kind)
    assert found.ok == (found.fix is None)
    return found


def lab(runtime: str = "container", **networks: Any) -> clusterspec.ClusterSpec:
    backend = {"type": "local", "runtime": runtime}
    data = {"version": 1, "name": "lab", "backend": backend, "nodes": [{"count": 2}]}
    return clusterspec.model().model_validate({**data, "networks": networks})


def test_daemon_that_is_not_there_is_the_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent() -> None:
        raise PrerequisiteMissing("not running", "start it")

    for way in ("client", "look"):
        monkeypatch.setattr(daemon, way, absent)
    found = find("local.docker")
    assert (found.ok, found.fix) == (False, "start it")


@pytest.mark.parametrize(
    ("key", "value"),
    [("OperatingSystem", "Docker Desktop"), ("SecurityOptions", ["name=rootless"])],
)
def test_daemon_that_hides_addresses_is_refused(docker: Docker, key: str, value: Any) -> None:
    docker.answer[key] = value
    assert not find("local.docker").ok


def test_variable_that_is_left_out_is_named_without_its_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:hidden@index.example/simple")
    found = find("local.environment")
    assert not found.ok
    assert "PIP_INDEX_URL" in found.message
    assert "hidden" not in found.message


def test_subnet_of_a_route_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    route = (IPv4Network("10.0.0.0/8"), "a route of this machine (interface vpn0)")
    monkeypatch.setattr(network, "_routes", lambda: iter([route]))
    found = find("local.subnet.control", lab())
    assert "vpn0" in found.message
    fix = "set networks.control.subnet in inventories/lab/cluster.yml"
    assert found.fix == fix, "nothing is proposed where nothing is free"


def test_what_confined_nodes_leave_open_is_told() -> None:
    found = find("local.isolation", lab())
    assert "confined containers, which share this machine's kernel" in found.message
    assert "can become root" not in found.message


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"services": {"docker": {}}}, r"root on a node can become root .*\(services.docker\)"),
        (
            {"recipe": "cuda13", "nodes": [{"count": 1, "gpus": 1, "simulate": "T4"}]},
            r"root on a node with GPUs can become root .*\(nodes\[\].simulate\)",
        ),
    ],
)
def test_what_asks_for_nodes_that_are_not_confined_is_told(
    change: dict[str, Any], words: str
) -> None:
    wanted = clusterspec.model().model_validate(lab().model_dump(mode="json") | change)
    assert re.search(words, find("local.isolation", wanted).message)


def test_nodes_that_were_made_before_are_named(docker: Docker) -> None:
    for name, dropped in (("node-0", None), ("node-1", ["ALL"])):
        labels = {"gpubed.node": name}
        attrs = {"Config": {"Labels": labels}, "HostConfig": {"CapDrop": dropped}}
        docker.nodes.append(SimpleNamespace(attrs=attrs))
    assert "root on node-0 can become root" in find("local.isolation", lab()).message

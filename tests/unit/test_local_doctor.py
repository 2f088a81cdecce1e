"""`gpubed doctor` on the local backend: each finding can fail, and says what to do."""

from __future__ import annotations

import re
from ipaddress import IPv4Network
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpubed.backends.local import addresses, daemon, doctor, image, image_cache
from gpubed.core import record
from gpubed.core.errors import PrerequisiteMissing
from gpubed.core.paths import ClusterPaths, Project
from gpubed.spec import clusterspec
from gpubed.spec.plan import ClusterPlan, plan, slices
from gpubed.testbeds.base import Finding
from support.samples import sample_allocation

UUID = "6f0c0000-0000-4000-8000-000000000000"
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
    monkeypatch.setattr(addresses, "_routes", lambda: iter(()))
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


def many(count: int) -> clusterspec.ClusterSpec:
    data = {"version": 1, "name": "lab", "backend": {"type": "local"}, "nodes": [{"count": count}]}
    return clusterspec.model().model_validate(data)


def test_nodes_that_run_have_their_memory(docker: Docker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses.record, "uuid", lambda _: "u1")
    labels = [{"gpubed.cluster": "u1", "gpubed.node": node.name} for node in plan(many(1000)).nodes]
    confined = {"CapDrop": ["ALL"]}
    attrs = [{"Config": {"Labels": its}, "HostConfig": confined} for its in labels]
    docker.nodes = [SimpleNamespace(attrs=its) for its in attrs]
    assert find("local.memory", many(1000)).ok
    docker.nodes = docker.nodes[1:]
    assert "available for 1 node(s)" in find("local.memory", many(1000)).message


def test_no_registry_and_no_mmdebstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "exists", lambda _: False)
    monkeypatch.setattr(image_cache, "without_registry", lambda _: "mmdebstrap is not installed")
    monkeypatch.setattr(doctor, "_registry_has", lambda _: False)
    found = find("local.image")
    assert not found.ok
    assert "mmdebstrap is not installed" in found.message


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
    monkeypatch.setattr(addresses, "_routes", lambda: iter([route]))
    found = find("local.subnet.control", lab())
    assert "vpn0" in found.message
    fix = "set networks.control.subnet in inventories/lab/cluster.yml"
    assert found.fix == fix, "nothing is proposed where nothing is free"


def test_the_proposal_is_free_of_the_clusters_other_network(docker: Docker) -> None:
    second = next(islice(slices("lab", "control"), 1, None))
    first = str(plan(lab()).control.subnet)
    wanted = lab(control={"subnet": first}, experiment={"rate": "1 Gbit/s", "subnet": str(second)})
    docker.network("other", first, {})
    assert f"{second} is free" not in str(find("local.subnet.control", wanted).fix)


def planned(paths: ClusterPaths, **networks: Any) -> ClusterPlan:
    wanted = lab(**networks)
    return plan(wanted, addresses.surroundings(wanted, paths))


def test_a_second_clone_takes_the_next_subnets_and_keeps_them(
    docker: Docker, tmp_path: Path
) -> None:
    """`lab` of another clone on this machine had those that the name picks."""
    paths = Project(tmp_path).cluster("lab")
    link = {"experiment": {"rate": "1 Gbit/s"}}
    first = planned(paths, **link)
    for number, purpose in enumerate(("control", "experiment")):
        subnet = str(getattr(first, purpose).subnet)
        labels = {"gpubed.name": "lab", "gpubed.cluster": f"theirs-{number}"}
        docker.network(f"gpubed-lab-0-{purpose}", subnet, labels)
    second = planned(paths, **link)
    assert second.control.subnet == next(islice(slices("lab", "control"), 1, None))
    assert second.experiment is not None
    assert second.experiment.subnet == next(islice(slices("lab", "experiment"), 1, None))
    assert find("local.subnet.control", lab()).ok, "check, doctor and plan agree"

    record.keep_uuid(paths, UUID)
    docker.network("gpubed-lab-1-control", str(second.control.subnet), {"gpubed.cluster": UUID})
    del docker.found[:2]
    half = planned(paths, **link)
    assert half.control == second.control, "its network is made, and theirs is gone"

    docker.found.clear()
    granted = sample_allocation(second)
    paths.allocation.write_text(granted.model_dump_json())
    assert planned(paths, **link).control == second.control, "whatever else is free by now"
    assert planned(paths, control={"subnet": "10.9.0.0/24"}).control.subnet == IPv4Network(
        "10.9.0.0/24"
    )


def test_subnet_of_the_clusters_own_network_is_free(
    docker: Docker, monkeypatch: pytest.MonkeyPatch
) -> None:
    subnet = "10.77.0.0/24"
    wanted = lab(control={"subnet": subnet})
    route = (IPv4Network(subnet), "a route of this machine (interface br-1)")
    monkeypatch.setattr(addresses, "_routes", lambda: iter([route]))
    docker.network("gpubed-lab-1-control", subnet, {"gpubed.name": "lab", "gpubed.cluster": "u1"})
    found = find("local.subnet.control", wanted)
    assert "gpubed-lab-1-control of another lab (gpubed audit lab" in found.message, "not ours"
    monkeypatch.setattr(addresses.record, "uuid", lambda _: "u1")
    assert find("local.subnet.control", wanted).ok
    docker.found.clear()
    docker.network("other", subnet, {})
    assert "Docker network other" in find("local.subnet.control", wanted).message


def test_gpus_that_are_only_pretended_are_told() -> None:
    wanted = lab().model_dump(mode="json") | {"recipe": "cuda13"}
    wanted["nodes"] = [{"count": 1, "gpus": 2, "simulate": "A100-SXM4-80GB"}]
    found = find("local.gpus.simulated", clusterspec.model().model_validate(wanted))
    assert found.ok
    assert "only pretend to have A100-SXM4-80GB" in found.message
    assert "local.gpus.simulated" not in [finding.id for finding in doctor.findings(lab(), LAB)]


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


def test_a_machine_that_can_confine_none_is_told(docker: Docker) -> None:
    docker.answer["SecurityOptions"] = ["name=userns"]
    assert "confines none: its Docker maps users" in find("local.isolation", lab()).message


def test_nodes_that_were_made_before_are_named(docker: Docker) -> None:
    for name, dropped in (("node-0", None), ("node-1", ["ALL"])):
        labels = {"gpubed.node": name}
        attrs = {"Config": {"Labels": labels}, "HostConfig": {"CapDrop": dropped}}
        docker.nodes.append(SimpleNamespace(attrs=attrs))
    assert "root on node-0 can become root" in find("local.isolation", lab()).message

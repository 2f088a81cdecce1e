"""Nodes that mind the end of their lease are told of it, and a cluster may have one of its own.

What nodes answer is a STAND-IN's.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cluster import lease
from gpubed.configuration import node_lease
from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project
from gpubed.nodes.allocation import Allocation, Cluster
from gpubed.nodes.ssh import CommandResult, Unreachable
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds import specification
from support.samples import sample_allocation, sample_plan
from support.sessions import Session

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINDED = {"lease": {"duration": "12 h", "on_nodes": {"warning": "20 min", "stop": "5 min"}}}


class World:
    """A cluster, and what its nodes were told; `silent` are those that do not answer."""

    def __init__(self, project: Project) -> None:
        self.paths = project.cluster("lab")
        self.paths.state.mkdir(parents=True)
        self.heard: dict[str, list[Any]] = {}
        self.silent: dict[str, Exception] = {}
        self.plan: ClusterPlan = sample_plan(**MINDED)
        self.granted: Allocation = sample_allocation(self.plan)

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.paths, self.plan, self.granted)

    def tell(self, **more: Any) -> None:
        lease.tell_nodes(self.cluster, **more)


@pytest.fixture
def world(tmp_path, monkeypatch):
    found = World(Project(tmp_path))

    class Node(Session):
        def __init__(self, node, _):
            self.name = node.name

        def run(self, command, verb, *words):
            assert command.startswith("sudo -n gpubed-lease %s")
            if fault := found.silent.get(self.name):
                raise fault
            said = [json.loads(word) for word in words] or [verb]
            found.heard.setdefault(self.name, []).extend(said)
            return CommandResult("", "", 0, 0.0)

    monkeypatch.setattr(node_lease, "SSH", Node)
    monkeypatch.setattr(lease, "now", lambda: NOW)
    return found


def test_nodes_hear_of_each_end_once(world, monkeypatch):
    lease.read(world.cluster)
    world.tell()
    [said] = world.heard["node-0"]
    assert said == {
        "cluster": world.granted.uuid,
        "name": "lab",
        "until": "2030-01-01T12:00:00+00:00",
        "left_s": 12 * 3600,
        "warning": 1200,
        "stop": 300,
        "everyone": True,
    }
    monkeypatch.setattr(lease, "now", lambda: NOW + HOUR)
    world.tell()
    assert len(world.heard["node-0"]) == 1
    lease.renew(world.cluster, NOW + 24 * HOUR)
    world.tell()
    assert world.heard["node-0"][1]["left_s"] == 23 * 3600
    world.tell(anew=True)  # they were set up anew, perhaps
    assert [len(heard) for heard in world.heard.values()] == [3] * 3


@pytest.mark.parametrize(
    ("backend", "on_nodes", "rest", "said"),
    [
        ("{type: local}", "{}", "", None),
        ("{type: local}", "{}", "configure: false\n", "bare nodes do not mind their lease"),
        ("{type: gpulab, certificate: a.pem, project: p, image: i}", "{}", "", "lends no nodes"),
        ("{type: local}", "{stop: 40 min}", "", "must not come before the warning"),
        ("{type: local}", "{stop: 1 min}", "", "at least 3 min"),
    ],
)
def test_what_nodes_cannot_mind_is_refused(tmp_path, backend, on_nodes, rest, said):
    path = tmp_path / "lab/cluster.yml"
    path.parent.mkdir()
    text = f"version: 1\nbackend: {backend}\nnodes: [{{count: 1}}]\nlease:\n  on_nodes: {on_nodes}"
    path.write_text(f"{text}\n{rest}")
    errors = [error for error in specification.check(path)[1] if "on_nodes" in error.path]
    assert [error.line for error in errors] == ([] if said is None else [5])
    if said:
        assert said in str(errors[0])


def test_renew_lets_nodes_know_and_says_who_does_not(world, monkeypatch):
    spec = world.paths.spec
    spec.parent.mkdir(parents=True)
    spec.write_text(
        "version: 1\nbackend: {type: local}\nnodes: [{count: 3}]\n"
        "networks: {experiment: {rate: 1 Gbit/s}}\nlease: {on_nodes: {}}\n"
    )
    world.paths.allocation.write_text(world.granted.model_dump_json())
    monkeypatch.setenv("GPUBED_ROOT", str(world.paths.project.root))
    words = ["renew", "lab", "--for", "2h", "--json"]
    done = CliRunner().invoke(cli.build(), words, standalone_mode=False)
    assert json.loads(done.stdout)["lease"]["granted_until"] == "2030-01-01T02:00:00+00:00"
    assert world.heard["node-1"][0]["until"] == "2030-01-01T02:00:00+00:00"
    world.silent["node-1"] = Unreachable("node-1 does not answer")
    done = CliRunner().invoke(cli.build(), ["renew", "lab", "--for", "3h"], standalone_mode=False)
    assert isinstance(done.exception, GpubedError)
    assert done.exception.hint
    assert done.exception.hint.startswith("gpubed renew lab --auto --once")

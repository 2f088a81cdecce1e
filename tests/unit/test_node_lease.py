"""Nodes that mind the end of their lease are told of it, and a cluster may have one of its own.

What nodes answer is a STAND-IN's.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.cluster import before_end, lease, renewal
from gpubed.configuration import node_lease
from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project
from gpubed.nodes.allocation import Allocation
from gpubed.nodes.cluster import Cluster
from gpubed.nodes.ssh import CommandFailed, CommandResult, Unreachable
from gpubed.spec.plan import ClusterPlan
from gpubed.testbeds import specification
from support.samples import sample_allocation, sample_plan
from support.sessions import Session

NOW = datetime(2030, 1, 1, tzinfo=UTC)
HOUR = timedelta(hours=1)
MINDED = {"lease": {"duration": "12 h", "on_nodes": {"warning": "20 min", "stop": "5 min"}}}
HELD = "its lease ends at 2030-01-01 12:00 UTC: gpubed renew lab"


class World:
    """A cluster, and what its nodes were told; `silent` are those that do not answer."""

    def __init__(self, project: Project) -> None:
        self.paths = project.cluster("lab")
        self.paths.state.mkdir(parents=True)
        self.heard: dict[str, list[Any]] = {}
        self.silent: dict[str, Exception] = {}
        self.meanwhile: list[Callable[[], object]] = []  # while a node is told
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
            if found.meanwhile:
                found.meanwhile.pop()()
            if fault := found.silent.get(self.name):
                raise fault
            said = [json.loads(word) for word in words] or [verb]
            found.heard.setdefault(self.name, []).extend(said)
            return CommandResult("", "", 0, 0.0)

    monkeypatch.setattr(node_lease, "SSH", Node)
    monkeypatch.setattr(lease, "now", lambda: NOW)
    return found


def test_where_no_testbed_takes_nodes_back_the_end_is_the_clusters_own(world, monkeypatch):
    record = lease.read(world.cluster)
    assert (record.granted_until, record.own) == (NOW + 12 * HOUR, True)
    monkeypatch.setattr(lease, "now", lambda: NOW + HOUR)
    assert lease.read(world.cluster).granted_until == NOW + 12 * HOUR
    renewed = lease.renew(world.cluster, NOW + 20 * HOUR)
    assert renewed.granted_until == NOW + 20 * HOUR
    shorter = lease.renew(world.cluster, NOW + 2 * HOUR)
    assert shorter.granted_until == NOW + 20 * HOUR


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


def refused(code: int) -> CommandFailed:
    return CommandFailed("node-1", "gpubed-lease", CommandResult("", "no", code, 0.0))


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (Unreachable("node-1 does not answer"), "node-1: node-1 does not answer"),
        (refused(127), "node-1: it has no gpubed-lease; repair: gpubed configure lab --tags"),
        (refused(1), "node-1: "),
    ],
)
def test_who_cannot_be_told_is_named_and_told_the_next_time(world, fault, why):
    lease.read(world.cluster)
    world.silent["node-1"] = fault
    with pytest.raises(GpubedError, match="not all nodes know") as raised:
        world.tell()
    assert why in raised.value.message
    [said] = renewal.look(world.cluster).said
    assert (said.matter, said.is_fault) == ("nodes", True)
    assert "node-1" in said.outcome
    world.silent.clear()
    assert renewal.look(world.cluster).said == []
    assert [len(heard) for heard in world.heard.values()] == [1] * 3


@pytest.mark.parametrize("fails", [False, True])
def test_a_renewal_by_hand_while_the_end_is_prepared_stays(world, monkeypatch, fails):
    """What was known before was written back: nodes ended what ran, and nobody told them anew."""
    lease.read(world.cluster)
    world.tell()
    now = NOW + 12 * HOUR - timedelta(minutes=25)
    monkeypatch.setattr(lease, "now", lambda: now)
    world.plan = sample_plan(lease={**MINDED["lease"], "renewal": {"most": "12 h"}})

    def prepare(cluster):
        lease.renew(cluster, now + 12 * HOUR)
        lease.tell_nodes(cluster)
        if fails:
            raise GpubedError("no space left on device")
        return ["collected"]

    monkeypatch.setattr(before_end, "prepare", prepare)
    looked = renewal.look(world.cluster)
    assert looked.record.granted_until == now + 12 * HOUR
    [said] = [one for one in looked.said if one.matter in ("", "end")]
    why = "not prepared: no space left on device" if fails else "collected"
    assert (said.outcome, said.is_fault) == (why, fails)
    assert lease.last(world.paths).granted_until == now + 12 * HOUR
    assert lease.last(world.paths).ended_for == (None if fails else NOW + 12 * HOUR)
    later = ["2030-01-01T12:00:00+00:00", "2030-01-01T23:35:00+00:00"]
    for heard in world.heard.values():
        assert [said["until"] for said in heard] == later


def test_an_end_of_its_own_that_is_over_is_renewed_and_not_replaced(world, monkeypatch):
    lease.read(world.cluster)
    monkeypatch.setattr(lease, "now", lambda: NOW + 13 * HOUR)
    with pytest.raises(GpubedError, match="run no job any more") as raised:
        lease.check_not_expired(world.paths)
    assert raised.value.hint == "gpubed renew lab"
    lease.renew(world.cluster, NOW + 15 * HOUR)
    lease.check_not_expired(world.paths)


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

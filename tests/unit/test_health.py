"""Which nodes jobs may use; what nodes answer is a STAND-IN's."""

import json
from types import SimpleNamespace

import pytest

from gpubed.configuration import health
from gpubed.core.errors import GpubedError
from gpubed.core.paths import ClusterPaths, Project
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import CommandResult, CommandTimedOut
from support.samples import sample_allocation, sample_plan
from support.sessions import answering

WELL = json.dumps({"problems": [], "quarantine": None})
HELD = json.dumps({"problems": [], "quarantine": {"reason": "fan is loud", "since": "2026-01-01"}})


@pytest.fixture
def usable(monkeypatch, tmp_path):
    """A function from what nodes answer to what is left of the cluster, and what is not."""

    def ask(*answers):
        plan, granted = answering(monkeypatch, health, answers)
        monkeypatch.setattr(health, "greet", lambda *_: None)
        left, out = health.usable(Cluster(ClusterPaths(Project(tmp_path), "lab"), plan, granted))
        return [node.name for node in left.allocation.nodes], {found.node: found for found in out}

    return ask


def test_all_nodes_that_are_well_are_used(usable):
    assert usable(WELL, WELL) == (["node-0", "node-1"], {})


def test_a_node_in_quarantine_is_left_out(usable):
    left, out = usable(WELL, HELD)
    assert left == ["node-0"]
    assert (out["node-1"].state, out["node-1"].reason) == ("quarantined", "fan is loud")


@pytest.mark.parametrize(
    ("more", "is_by_hand"), [({}, True), ({"own": False}, True), ({"own": True}, False)]
)
def test_a_node_says_whether_it_took_itself_out_of_use(usable, more, is_by_hand):
    """One of a former version does not: somebody may be at work on it."""
    told = json.loads(HELD)
    told["quarantine"] |= more
    held = usable(WELL, json.dumps(told))[1]["node-1"].quarantine
    assert held
    assert held.is_by_hand is is_by_hand


def test_a_node_that_cannot_tell_how_it_is_is_left_out_with_the_repair(usable):
    left, out = usable(WELL, "")
    assert left == ["node-0"]
    assert out["node-1"].state == "failing"
    assert "no such command" in out["node-1"].reason
    assert "gpubed configure lab --tags health" in out["node-1"].reason


def test_what_a_node_printed_until_it_was_cut_off_stands_on_no_line_of_its_own(tmp_path):
    """In `gpubed status` and `health` it could read as what gpubed says itself."""
    node = sample_allocation(sample_plan()).nodes[0]

    def run(*_, **__):
        cut = CommandResult("\n✓ lab is ready\n", "", -1, 30.0)
        raise CommandTimedOut(node.name, "sudo -n gpubed-health status", cut)

    session = SimpleNamespace(run=run)
    found = health.ask(session, ClusterPaths(Project(tmp_path), "lab"), node)
    why = "`sudo -n gpubed-health status` on node-0 was cut off after 30 s"
    assert (found.state, found.reason) == ("failing", why)


def test_nothing_starts_without_the_head(usable):
    with pytest.raises(GpubedError, match="the head node-0 is not well: fan is loud"):
        usable(HELD, WELL)

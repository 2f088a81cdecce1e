"""Nodes that hang are restarted by their testbed; sessions and the testbed are STAND-INs."""

import json
from types import SimpleNamespace

import pytest

from gpubed.cluster import probe
from gpubed.cluster.probe import Condition
from gpubed.core import progress
from gpubed.core.errors import GpubedError
from gpubed.core.paths import Project
from gpubed.jobs.runs import active
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import (
    CommandResult,
    CommandTimedOut,
    HostKeyMismatch,
    LoginRefused,
    Unreachable,
)
from support.samples import sample_allocation, sample_plan

NAMES = ("node-0", "node-1", "node-2")
PATIENCE_S = 600.0
SLOW = CommandTimedOut("node-1", "true", CommandResult("", "", -1, 15.0))


def stranger():
    return HostKeyMismatch("node-1", ["ssh-ed25519 AAAA"], "ssh-ed25519 BBBB")


def on_the_way(error):
    error.on_the_way = True
    return error


class Ground:
    """Nodes that hang until they are restarted, and what was done to them.

    Attributes:
        says: What nodes say that do not let us in; a restart ends that, unless it is in `after`.
        waited: For how long each was waited for, in seconds.
    """

    def __init__(self, paths):
        self.paths, self.plan = paths, sample_plan()
        self.allocation = sample_allocation(self.plan)
        self.says, self.after, self.waited = {}, {}, []
        self.restarted, self.approved = [], []
        self.backend = SimpleNamespace(name="wall", restarts=True, boots_within_s=PATIENCE_S)

    def restart(self, allocation, node):
        assert allocation == self.allocation
        self.restarted.append(node.name)
        self.says.pop(node.name, None)
        self.says |= {name: error for name, error in self.after.items() if name == node.name}

    def bring_back(self, *silent, all_silent=False, approve=None, **options):
        states = dict.fromkeys(NAMES, "ready") | dict.fromkeys(silent, "unreachable")
        found = Condition(states, all_silent=all_silent)
        cluster = Cluster(self.paths, self.plan, self.allocation)
        return probe.restart_hung(cluster, found, approve or self.approved.append, **options)


@pytest.fixture
def ground(tmp_path, monkeypatch):
    made = Ground(Project(tmp_path).cluster("lab"))

    class Session:
        def __init__(self, node, _):
            self.name = node.name

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def wait_ready(self, timeout):
            made.waited.append(round(timeout))
            if self.name in made.says:
                raise made.says[self.name]

    monkeypatch.setattr(probe, "SSH", Session)
    monkeypatch.setattr(probe.registry, "bound", lambda *_: made)
    monkeypatch.setattr(active, "ends_with_nodes", lambda _: None)
    return made


def test_a_node_that_stays_silent_is_restarted_and_told(ground, tmp_path, monkeypatch):
    monkeypatch.setenv(progress.VARIABLE, str(tmp_path / "events"))
    ground.says = {"node-1": Unreachable("no")}
    assert ground.bring_back("node-1") == ("node-1",)
    assert ground.restarted == ["node-1"]
    assert ground.approved == [], "disks stay: nothing is asked"
    told = [json.loads(line)["message"] for line in (tmp_path / "events").read_text().splitlines()]
    assert told == [
        "node-1: no answer; waiting 600 s, as long as a boot",
        "node-1: silent, and restarted by wall",
    ]
    assert ground.waited == [600, 600], "before as after"


def test_a_node_that_was_given_its_time_is_tried_once_more_and_not_waited_for(ground):
    ground.says = {"node-1": Unreachable("no")}
    ground.bring_back("node-1", overdue={"node-1"})
    assert ground.waited == [0, 600]
    ground.says = {}
    assert ground.bring_back("node-1", overdue={"node-1"}) == ()
    assert ground.restarted == ["node-1"], "once it answers, it is left alone"


@pytest.mark.parametrize(
    "said",
    [
        None,
        LoginRefused("node-1 does not accept the key"),
        stranger(),
        SLOW,
        on_the_way(Unreachable("gate does not answer")),
        on_the_way(LoginRefused("gate does not accept the key")),
    ],
    ids=["answers", "refuses", "stranger", "slow", "gate", "gate-refuses"],
)
def test_what_answers_or_cannot_be_seen_is_never_restarted(ground, said):
    ground.says = {"node-1": said} if said else {}
    assert ground.bring_back("node-1") == ()
    assert ground.restarted == []


def test_all_silent_at_once_is_the_way_and_none_is_restarted(ground):
    ground.says = dict.fromkeys(NAMES, Unreachable("no"))
    with pytest.raises(GpubedError, match="no node of lab answers") as caught:
        ground.bring_back(*NAMES, all_silent=True)
    assert (ground.restarted, ground.approved) == ([], [])
    assert "gpubed up lab" in caught.value.hint
    del ground.says["node-0"]
    assert ground.bring_back(*NAMES, all_silent=True) == ("node-1", "node-2"), "one has answered"

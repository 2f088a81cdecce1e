"""A training that outlives its nodes. Nodes, their health and the job are STAND-INS."""

import json
import time
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.configuration import health
from gpubed.configuration.health import NodeHealth, Quarantine
from gpubed.core import runlock
from gpubed.core.errors import GpubedError, Locked, UsageError
from gpubed.jobs import elastic, execution, launchers
from gpubed.jobs.launchers import leftovers
from gpubed.jobs.runs import record
from gpubed.nodes.ssh import Unreachable
from support.samples import granted_cluster
from support.stand_in_head import Head


class Scene:
    """What happens to a training: a script of runs, and which nodes are not well."""

    def __init__(self, cluster):
        self.cluster, self.script, self.hosts = cluster, [], []
        self.unwell, self.head_is_gone, self.checkpoints = {}, False, "a"

    def start(self, _cluster, allocation, launch, _say):
        self.hosts.append([node.name for node in allocation.with_ranks])
        Head.metrics = {"world_size": launch.ranks, "loss": 0.1, "loss_fall": 0.1}
        Head.metrics["checkpoint_failures"] = 0
        return self.script.pop(0)() if self.script else 0

    def usable(self, _cluster, _plan, allocation):
        if self.head_is_gone:
            raise Unreachable("node-0 does not answer", "gpubed up lab")
        kept = tuple(node for node in allocation.nodes if node.name not in self.unwell)
        return allocation.model_copy(update={"nodes": kept}), list(self.unwell.values())

    def loses(self, name, *, reachable=False):
        quarantine = Quarantine(reason="Xid 79", since="now") if reachable else None
        found = NodeHealth(
            node=name, problems=("away",), reachable=reachable, quarantine=quarantine
        )
        self.unwell[name] = found


@pytest.fixture
def scene(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    made = Scene(granted_cluster(tmp_path))
    kind = SimpleNamespace(run=made.start, ends_early=True)

    monkeypatch.setattr(execution, "SSH", Head)
    monkeypatch.setattr(leftovers, "end", lambda *_: [])
    monkeypatch.setattr(launchers, "named", lambda name: kind if name == "ssh" else _no_end())
    monkeypatch.setattr(health, "usable", made.usable)
    monkeypatch.setattr(elastic.Training, "_kept", lambda *_: made.checkpoints)
    monkeypatch.setattr(elastic, "_ASK_AGAIN_S", 0.01)
    return made


def _no_end():
    return SimpleNamespace(run=None, ends_early=False)


@pytest.fixture
def call(scene):
    return lambda *words: say("imagenet", "--elastic", *words)


def say(*words):
    """Call `gpubed run lab`."""
    words = ["run", "lab", *words]
    return CliRunner().invoke(cli.build(), words, standalone_mode=False, catch_exceptions=False)


def test_a_run_that_loses_a_node_goes_on_without_it(scene, call):
    scene.script = [lambda: scene.loses("node-2") or 1]
    done = call("--json")
    told = json.loads(done.stdout)
    assert (done.return_value, told["status"], told["world_size"]) == (0, "ok", 2)
    assert scene.hosts == [["node-0", "node-1", "node-2"], ["node-0", "node-1"]]
    first, second = told["legs"]
    assert first["nodes"] == ["node-0", "node-1", "node-2"]
    assert "exit code 1" in first["why"]
    assert second["why"] == ""
    kept = record.find(scene.cluster, second["run_id"])
    assert (kept.resumes, kept.elastic) == (first["run_id"], True)
    assert kept.values["checkpoint"]


def test_it_waits_for_as_many_as_it_needs(scene, call):
    looks = []

    def come_back(*given):
        looks.append(given)
        if len(looks) == 3:
            scene.unwell.clear()
        return scene.usable(*given)

    def lose():
        scene.loses("node-1")
        scene.loses("node-2")
        health.usable = come_back
        return 1

    before, scene.script = health.usable, [lose]
    try:
        done = call("--min", "2")
    finally:
        health.usable = before
    assert done.return_value == 0
    assert [len(hosts) for hosts in scene.hosts] == [3, 3]
    assert "waits: 1 node(s) are well, and at least 2 are wanted" in done.stderr
    assert done.stderr.count("waits:") == 1


def test_the_head_may_go_and_come_back(scene, call, monkeypatch):
    def go():
        scene.head_is_gone = True
        raise GpubedError("node-0 does not answer")

    def sleep(_seconds):
        scene.head_is_gone = False

    scene.script = [go]
    monkeypatch.setattr(elastic, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    done = call("--json")
    told = json.loads(done.stdout)
    assert (done.return_value, len(told["legs"])) == (0, 2)
    assert told["legs"][0]["why"] == "node-0 does not answer"
    assert record.find(scene.cluster, told["legs"][0]["run_id"]).state == "failed"


def test_a_job_that_fails_by_itself_is_given_up(scene, call):
    scene.script = [lambda: 1] * 9
    done = call("--json")
    told = json.loads(done.stdout)
    assert (done.return_value, told["status"], len(told["legs"])) == (1, "failed", 3)
    assert "3 times in a row before it had kept anything new" in told["failures"][0]


def test_one_that_gets_on_is_not(scene, call):
    def get_on():
        scene.checkpoints += "b"
        return 1

    scene.script = [get_on] * 5
    assert call().return_value == 0
    assert len(scene.hosts) == 6


def test_no_more_nodes_than_were_asked_for(scene, call):
    assert call("--max", "2").return_value == 0
    assert scene.hosts == [["node-0", "node-1"]]


def test_what_is_wrong_is_said_before_anything_starts(scene, call):
    for words, said in {
        ("--nodes", "2"): "chooses the nodes itself",
        ("--repeat", "2"): "chooses the nodes itself",
        ("--min", "3", "--max", "2"): "no number of nodes is so",
        ("--min", "0"): "no number of nodes is so",
        ("--launcher", "slurm"): "which launcher slurm cannot do",
    }.items():
        with pytest.raises(UsageError, match=said):
            call(*words)
    with pytest.raises(UsageError, match="add --elastic"):
        say("imagenet", "--min", "2")
    with pytest.raises(UsageError, match="keeps no checkpoints"):
        say("digits", "--elastic")
    assert scene.hosts == []


def test_it_can_be_gone_on_with(scene, call):
    first = json.loads(call("--json").stdout)
    done = say("--elastic", "--resume", first["run_id"], "--json")
    then = record.find(scene.cluster, json.loads(done.stdout)["run_id"])
    assert then.resumes == first["run_id"]
    assert then.values == record.find(scene.cluster, first["run_id"]).values


def test_a_campaign_keeps_it_out(scene, call):
    with runlock.measuring(scene.cluster.state, "bench"), pytest.raises(Locked, match="bench"):
        call()
    assert scene.hosts == []


@pytest.fixture
def sight(scene):
    """A function that looks at the nodes of a run as it goes on."""
    request = record.Request(job="imagenet")
    training = elastic.Training(
        scene.cluster, request, elastic.Bounds(2, 3), lambda _: None, lambda _: None
    )

    def look(*names):
        pool = training._look()
        had = [node for node in pool.usable.nodes if node.name in names]
        return lambda: training._sight(had)

    return look


def test_all_well_is_nothing_to_see(sight):
    assert sight("node-0", "node-1", "node-2")() == elastic.Sight()


def test_a_silent_node_is_lost_and_one_in_quarantine_left_out_later(scene, sight):
    look = sight("node-0", "node-1", "node-2")
    scene.loses("node-2", reachable=True)
    assert look().better == "node-2 is left out (Xid 79; away)"
    scene.loses("node-1")
    assert look().lost == "away"


def test_a_node_that_came_is_taken_in(sight):
    assert sight("node-0", "node-1")().better == "node-2 is taken in"


def test_the_head_is_a_node_too(scene, sight):
    look = sight("node-0", "node-1", "node-2")
    scene.head_is_gone = True
    assert look().lost == "node-0 does not answer"


def test_too_few_others_are_no_better(scene, sight):
    look = sight("node-0", "node-1", "node-2")
    for name in ("node-1", "node-2"):
        scene.loses(name, reachable=True)
    assert look() == elastic.Sight()


def test_a_node_that_was_made_anew_is_another(scene, sight):
    look = sight("node-0", "node-1", "node-2")
    text = scene.cluster.allocation.read_text().replace("id-node-2", "id-new")
    scene.cluster.allocation.write_text(text)
    assert look().lost == "node-2 was replaced"


def test_what_is_being_configured_is_not_taken_in_yet(scene, sight):
    look = sight("node-0", "node-1")
    scene.cluster.unfinished.touch()
    assert look() == elastic.Sight()

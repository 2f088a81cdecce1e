"""A training that outlives its nodes: on which it goes on, and who may beside it."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.configuration import health
from gpubed.core.errors import Locked, UsageError
from gpubed.jobs.runs import checkpoints, record
from gpubed.nodes.allocation import NotUp
from support.trainings import call, detectors, files, say, scene

pytestmark = pytest.mark.process

__all__ = ["call", "detectors", "scene"]


def test_a_run_that_loses_a_node_goes_on_without_it(scene, call):
    scene.script = [lambda: scene.loses("node-2") or 1]
    done = call("--json")
    told = json.loads(done.stdout)
    assert (done.return_value, told["status"], told["world_size"]) == (0, "ok", 2)
    assert scene.hosts == [["node-0", "node-1", "node-2"], ["node-0", "node-1"]]
    first, second = told["legs"]
    assert first["nodes"] == ["node-0", "node-1", "node-2"]
    assert first["why"] == "the job ended with exit code 1", "its run is named beside it"
    assert second["why"] == ""
    kept = record.find(scene.cluster, second["run_id"])
    assert (kept.resumes, kept.elastic) == (first["run_id"], True)
    assert kept.values["checkpoint"] == first["run_id"], "a name that leads somewhere"


def test_a_part_that_was_ended_to_take_a_node_in_did_not_fail(scene, call, detectors):
    scene.loses("node-2")

    def come_back():
        scene.unwell.clear()
        detectors[-1]._looked = float("-inf")
        for _ in range(2):
            detectors[-1].tick()
        scene.checkpoints = files("a", "b")
        detectors[-1]._listed = float("-inf")
        detectors[-1].tick()
        return 1

    scene.script = [come_back]
    first, second = json.loads(call("--json", "--min", "2").stdout)["legs"]
    assert (first["status"], first["why"]) == ("interrupted", "node-2 is taken in")
    assert (second["status"], len(second["nodes"])) == ("ok", 3)
    assert record.find(scene.cluster, first["run_id"]).state == "interrupted"
    words = ["runs", "lab", "show", first["run_id"]]
    shown = CliRunner().invoke(cli.build(), words, standalone_mode=False).stdout
    assert "ended: node-2 is taken in" in shown
    assert f"\nresume: gpubed run lab --elastic --resume {first['run_id']}\n" in shown
    assert "failed" not in shown


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


def test_what_is_wrong_is_said_before_anything_starts(scene, call):
    for words, said in {
        ("--nodes", "2"): "chooses the nodes itself",
        ("--nodes", "0"): "chooses the nodes itself",
        ("--set", "checkpoint=../other"): "leads out of the folder of checkpoints",
        ("--repeat", "2"): "chooses the nodes itself",
        ("--min", "3", "--max", "2"): "no number of nodes fits",
        ("--min", "0"): "no number of nodes fits",
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
    with pytest.raises(UsageError, match="is complete"):
        say("--elastic", "--resume", first["run_id"])
    more = ("--set", "steps=200", "--json")
    done = say("--elastic", "--resume", first["run_id"], *more)
    then = record.find(scene.cluster, json.loads(done.stdout)["run_id"])
    assert then.resumes == first["run_id"]
    before = record.find(scene.cluster, first["run_id"]).values
    assert then.values == {**before, "steps": 200}


@pytest.mark.parametrize("how", ["down", "another"])
def test_it_ends_with_its_cluster(scene, call, how):
    def lose():
        text = scene.cluster.allocation.read_text()
        scene.cluster.allocation.unlink()
        if how == "another":
            granted = json.loads(text)
            scene.cluster.allocation.write_text(json.dumps({**granted, "uuid": "b" * 8}))
        return 1

    scene.script = [lose]
    with pytest.raises(NotUp):
        call()
    assert len(scene.hosts) == 1


@pytest.fixture
def training(scene):
    """A training in a process of its own, which waits for nodes; with a part that has ended."""
    scene.script = [lambda: 1] * 3
    part = json.loads(say("imagenet", "--elastic", "--json").stdout)["run_id"]
    [folder] = checkpoints.of(record.find(scene.cluster, part))
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom gpubed.core import runlock\n"
        "with runlock.locked(Path(sys.argv[1]), sys.argv[2]):\n    print(flush=True)\n"
        "    time.sleep(60)\n"
    )
    words = [str(checkpoints.lock(scene.cluster, folder)), checkpoints.ELASTIC]
    with subprocess.Popen(
        [sys.executable, "-c", program, *words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        process.stdout.readline()
        yield SimpleNamespace(part=part, folder=folder, process=process)
        process.kill()


@pytest.mark.parametrize("words", [["--resume"], ["--elastic", "--resume"], ["--again"]])
def test_its_checkpoints_have_no_other_writer(scene, training, words):
    before = len(scene.hosts)
    with pytest.raises(Locked, match="two writers would damage them"):
        say(*words, training.part)
    assert len(scene.hosts) == before

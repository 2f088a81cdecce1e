"""When a training is done, is given up, or would begin with nothing."""

import json
import time
from types import SimpleNamespace

import pytest

from gpubed.core.errors import UsageError
from gpubed.jobs import elastic
from gpubed.jobs.checkpoint_files import Files
from support.trainings import call, detectors, say, scene

pytestmark = pytest.mark.process

__all__ = ["call", "detectors", "scene"]


def test_a_job_that_fails_by_itself_is_given_up(scene, call):
    scene.script = [lambda: 1] * 9
    done = call("--json")
    told = json.loads(done.stdout)
    assert (done.return_value, told["status"], len(told["legs"])) == (1, "failed", 3)
    assert "3 times in a row without a new checkpoint" in told["failures"][0]


@pytest.fixture
def waits(monkeypatch):
    """A function that says what happens while a training waits."""

    def meanwhile(do):
        clock = SimpleNamespace(sleep=lambda _seconds: do(), monotonic=time.monotonic)
        monkeypatch.setattr(elastic, "time", clock)

    return meanwhile


def test_nodes_that_go_and_come_back_are_no_failing_of_the_job(scene, call, waits):
    """A watch restarts a node that froze, and it is the same node as before."""
    waits(lambda: scene.unwell.clear())
    scene.script = [lambda: scene.loses("node-2") or 1] * 5
    assert call("--min", "3").return_value == 0
    assert scene.hosts == [["node-0", "node-1", "node-2"]] * 6


def to_the_head(_scene):
    return 255


def to_a_rank(scene):
    scene.say("[2]<stderr>:Connection to node-2 closed by remote host.")
    for line in ("Traceback (most recent call last):", "Process name: 2", "Exit code: 255"):
        scene.say(line)
    return 1


@pytest.mark.parametrize("lose", [to_the_head, to_a_rank])
@pytest.mark.parametrize(("begins", "parts"), [(True, 6), (False, 3)])
def test_nor_is_a_connection_that_was_lost_once_there_were_steps(scene, call, lose, begins, parts):
    """Before, the way from the head to a node may be missing, and would be for ever."""

    def part():
        if begins:
            scene.say("progress: 1/9 steps")
        return lose(scene)

    scene.script = [part] * 5
    call()
    assert len(scene.hosts) == parts


@pytest.mark.parametrize("words", [(), ("--dry-run",)])
def test_it_does_not_go_on_where_no_checkpoint_is_left(scene, call, words):
    scene.script = [lambda: 1] * 3
    first = json.loads(call("--set", "checkpoint=mine", "--json").stdout)["run_id"]
    begun, scene.checkpoints = len(scene.hosts), Files()
    with pytest.raises(UsageError, match=r"no checkpoint to resume from in .*/mine\n") as refused:
        say("--elastic", "--resume", first, *words)
    anew = "gpubed run lab --elastic --set checkpoint=mine imagenet begins anew"
    assert refused.value.hint == anew
    assert len(scene.hosts) == begun

"""When a training is ended so that it can go on elsewhere. Time is a STAND-IN."""

import pytest

from gpubed.jobs import lookout
from gpubed.jobs.lookout import Lookout, Sight


class Scene:
    """A training, its nodes and its checkpoints, as a lookout sees them."""

    def __init__(self):
        self.now, self.sight, self.kept, self.looks, self.said = 0.0, Sight(), "a", 0, []
        self.it = Lookout(self.look, lambda: self.kept, self.said.append, lambda: self.now)

    def look(self):
        self.looks += 1
        return self.sight

    def pass_(self, seconds, *, step_s=None):
        """Let time go by, with a line of progress every so often."""
        end, next_step = self.now + seconds, self.now + (step_s or 0)
        while self.now < end and not self.it.verdict:
            self.now += lookout._TICK_S
            if step_s and self.now >= next_step:
                self.it.hear("progress: 1/9 steps")
                next_step += step_s
            self.it.tick()
        return self.it.verdict


@pytest.fixture
def scene():
    return Scene()


def test_a_training_that_goes_on_is_left_alone_and_seldom_looked_at(scene):
    assert scene.pass_(600, step_s=4) == ""
    assert scene.looks <= 10
    assert scene.said == []


def test_a_silent_training_with_a_silent_node_is_ended_soon(scene):
    scene.pass_(60, step_s=4)
    scene.sight = Sight(lost="node-2 does not answer")
    began = scene.now
    assert scene.pass_(600) == "node-2 does not answer"
    assert scene.now - began <= lookout._SUSPICIOUS_S + 2 * lookout._TICK_S
    assert scene.it.blames_nodes
    assert not scene.it.makes_room


def test_a_node_that_only_we_cannot_reach_ends_nothing(scene):
    scene.sight = Sight(lost="node-2 does not answer")
    assert scene.pass_(600, step_s=4) == ""


def test_a_training_that_is_stuck_is_ended_though_all_nodes_answer(scene):
    scene.pass_(60, step_s=4)
    began = scene.now
    assert "nothing was heard of its progress" in scene.pass_(600)
    assert scene.now - began <= lookout._STUCK_S + 2 * lookout._TICK_S
    assert not scene.it.blames_nodes


def test_long_steps_make_it_patient(scene):
    assert scene.pass_(2000, step_s=100) == ""
    began = scene.now
    assert scene.pass_(2000)
    assert scene.now - began >= 10 * 100 - lookout._TICK_S


def test_it_may_take_its_time_to_begin(scene):
    assert scene.pass_(lookout._FIRST_S - 10) == ""
    assert scene.pass_(60)


def test_where_others_would_do_better_it_ends_with_the_next_checkpoint(scene):
    scene.pass_(10, step_s=2)
    scene.sight = Sight(better="node-3 is taken in")
    assert scene.pass_(300, step_s=2) == ""
    assert scene.said == ["node-3 is taken in: from its next checkpoint on"]
    scene.kept = "ab"  # still being written
    assert scene.pass_(2, step_s=2) == ""
    scene.kept = "abc"
    assert scene.pass_(2, step_s=2) == ""
    assert scene.pass_(4, step_s=2) == "node-3 is taken in"
    assert scene.it.blames_nodes
    assert scene.it.makes_room


def test_a_wish_that_is_none_any_more_is_forgotten(scene):
    scene.sight = Sight(better="node-3 is taken in")
    scene.pass_(100, step_s=2)
    scene.sight = Sight()
    scene.pass_(100, step_s=2)
    scene.kept = "more"
    assert scene.pass_(100, step_s=2) == ""

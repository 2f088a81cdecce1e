"""When a training is ended so that it can go on elsewhere. Time is a STAND-IN."""

import pytest

from gpubed.jobs import stall_detector
from gpubed.jobs.checkpoint_files import Files
from gpubed.jobs.stall_detector import Pace, Sight, StallDetector


def files(*finished, beside=()):
    """Files of checkpoints: each a name, or a name with what changes where it is written anew."""
    kinds = ([one.partition(" ")[::2] for one in kind] for kind in (finished, beside))
    return Files(*map(frozenset, kinds))


NO_PACE = Pace()


class Scene:
    """A training, its nodes and its checkpoints, as a stall detector sees them."""

    def __init__(self, pace=NO_PACE, *, tells=False):
        self.now, self.sight, self.kept, self.said = 0.0, Sight(), files("a"), []
        self.looks = self.asks = 0
        clock = lambda: self.now  # noqa: E731
        self.it = StallDetector(
            self.look, self.ask, self.said.append, pace, clock, prints_progress=tells
        )

    def look(self):
        self.looks += 1
        return self.sight

    def ask(self):
        self.asks += 1
        return self.kept

    def pass_(self, seconds, *, step_s=None, line="progress: 1/9 steps", tick=lambda: None):
        """Let time go by, with a line of output every so often."""
        end, next_step = self.now + seconds, self.now + (step_s or 0)
        while self.now < end and not self.it.verdict:
            self.now += stall_detector._TICK_S
            if step_s and self.now >= next_step:
                self.it.hear(line)
                next_step += step_s
            tick()
            self.it.tick()
        return self.it.verdict


@pytest.fixture
def scene():
    return Scene()


def test_a_training_that_goes_on_is_left_alone_and_seldom_looked_at(scene):
    assert scene.pass_(600, step_s=4) == ""
    assert scene.looks <= 10
    assert scene.asks <= 10
    assert scene.said == []


def test_a_silent_training_with_a_silent_node_is_ended_soon(scene):
    scene.pass_(60, step_s=4)
    scene.sight = Sight(lost="node-2 does not answer")
    began = scene.now
    assert scene.pass_(600) == "node-2 does not answer"
    assert scene.now - began <= stall_detector._SUSPICIOUS_S + 2 * stall_detector._TICK_S
    assert scene.it.blames_nodes
    assert not scene.it.makes_room


def test_a_node_that_only_we_cannot_reach_ends_nothing(scene):
    scene.sight = Sight(lost="node-2 does not answer")
    assert scene.pass_(600, step_s=4) == ""


def test_a_training_that_is_stuck_is_ended_though_all_nodes_answer(scene):
    scene.pass_(60, step_s=4)
    began = scene.now
    assert "kept no checkpoint" in scene.pass_(600)
    assert scene.now - began <= stall_detector._STUCK_S + 2 * stall_detector._TICK_S
    assert not scene.it.blames_nodes


def test_a_checkpoint_that_is_being_written_is_a_sign_of_life(scene):
    scene.pass_(60, step_s=4)

    def grow():
        scene.kept = files("a", beside=[f"draft {scene.now}"])

    assert scene.pass_(600, tick=grow) == ""
    assert "kept no checkpoint" in scene.pass_(stall_detector._STUCK_S + 20)


@pytest.fixture
def wish(scene):
    """A training to which a node came that it could have."""
    scene.pass_(10, step_s=2)
    scene.sight = Sight(better="node-3 is taken in")
    assert scene.pass_(300, step_s=2) == ""
    return scene


def test_where_others_would_do_better_it_ends_with_the_next_checkpoint(wish):
    assert wish.said == ["node-3 is taken in: this run ends after its next checkpoint"]
    wish.kept = files("a", "b")
    assert wish.pass_(40, step_s=2) == "node-3 is taken in"
    assert wish.it.blames_nodes
    assert wish.it.makes_room

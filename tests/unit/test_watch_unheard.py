"""What `gpubed watch` makes of nodes that nobody hears of, and of repairs that fail alike."""

import pytest

from gpubed.configuration.systemd import Stopped
from gpubed.core.errors import GpubedError
from support.watched import NAMES, world

__all__ = ["world"]

STOPPED = {"stopped": (Stopped("slurm", "slurmd.service", "node-2", "failed"),)}


def test_where_no_node_answers_nothing_is_repaired_and_nothing_spent(world):
    """The way is down for hours, while the testbed itself answers."""
    world.states, world.rest = dict.fromkeys(NAMES, "unreachable"), {"unheard": True}
    assert world.looks(60) == ["amiss"] * 60
    assert (world.repairs, world.kinds) == ([], ["unasked"])
    assert world.events[0].why == "no node of lab answers"
    assert world.events[0].outcome.endswith("where they hang: gpubed up lab")
    world.states, world.rest = {}, {}
    assert world.looks(1) == ["well"]
    assert world.kinds == ["unasked", "well"]
    world.states = {"node-1": "missing"}
    world.looks(2)
    assert len(world.repairs) == 1


@pytest.mark.parametrize(
    ("state", "said"), [("hidden", "on the way to it"), ("away", "only you can see to its power")]
)
def test_what_up_can_do_nothing_about_is_told_once_and_no_fault(world, state, said):
    world.states = {"node-1": state}
    assert world.looks(10) == ["amiss"] * 10
    assert (world.repairs, world.kinds) == ([], ["unasked"])
    assert said in world.events[0].why


def test_a_repair_that_fails_as_the_last_one_did_is_not_counted_again(world):
    """One host that stays dead leaves the day's repairs to others."""
    world.rest, world.fails = STOPPED, GpubedError("node-1 does not answer SSH")
    world.looks(200)
    assert len(world.repairs) > 5
    assert len(world.watch().telling.memory.repairs) == 1
    assert "spent" not in world.kinds
    world.fails, world.rest = None, {}
    world.looks(1)
    world.states = {"node-2": "missing"}
    world.looks(2)
    assert world.events[-1].why == "node-2 is missing"

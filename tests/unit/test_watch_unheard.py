"""What `gpubed watch` makes of nodes that nobody hears of, and of repairs that fail alike."""

import pytest

from gpubed.cluster import hung
from gpubed.configuration.systemd import Stopped
from gpubed.core.errors import GpubedError
from gpubed.testbeds import registry
from support.watched import HOUR, NAMES, world

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


def test_another_failure_counts_and_so_does_a_restart_in_vain(world):
    world.states, world.fails = {"node-1": "missing"}, GpubedError("no room")
    one = world.watch()
    world.looks(2, of=one)
    world.fails = GpubedError("no key")
    world.looks(3, of=one)
    assert (len(world.repairs), len(one.telling.memory.repairs)) == (2, 2)
    world.fails = hung.StaysSilent("node-1: restarted, and silent")
    world.looks(300, of=one)
    assert len(one.telling.memory.repairs) == 5, "each takes the node's power for a moment"
    assert world.kinds[-1] == "spent"


def test_a_restart_is_told_and_the_node_not_waited_for_again(world, monkeypatch):
    world.states, world.restarts = {"node-1": "unreachable", "node-2": "cut"}, ("node-1",)
    monkeypatch.setattr(type(registry.backend("local")), "boots_within_s", 600.0)
    began = world.now
    world.looks(12)
    assert [each - began >= HOUR / 6 for each in world.repairs] == [True]
    assert world.given_time == {"node-1"}
    assert world.events[-1].outcome.endswith(" s; restarted, since silent: node-1")

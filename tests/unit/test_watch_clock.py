"""What `gpubed watch` makes of times that a clock wrote which was ahead."""

import json
from datetime import UTC, datetime

import pytest

from support.watched import MINUTE, world

__all__ = ["world"]

AHEAD = datetime(2031, 1, 1, tzinfo=UTC).isoformat()


@pytest.mark.parametrize(
    "kept",
    [{"wait_until": AHEAD, "failures": 2}, {"repairs": [AHEAD] * 5}],
    ids=lambda kept: next(iter(kept)),
)
def test_times_that_are_yet_to_come_hold_up_no_repair(world, kept):
    world.cluster.watch.parent.mkdir(parents=True, exist_ok=True)
    world.cluster.watch.write_text(json.dumps(kept))
    world.states = {"node-1": "stopped"}
    assert world.looks(3) == ["amiss", "well", "well"]
    assert len(world.repairs) == 1
    assert world.kinds.count("clock") == 1
    assert str(world.cluster.watch) in world.events[0].why
    assert "2031" not in world.cluster.watch.read_text()


def test_a_repair_that_waits_for_its_turn_waits_on(world):
    """Its time is yet to come, too, and no clock was ahead."""
    world.heals, world.states = False, {"node-1": "stopped"}
    world.cluster.watch.parent.mkdir(parents=True, exist_ok=True)
    turn = (world.now + 20 * MINUTE).isoformat()
    world.cluster.watch.write_text(json.dumps({"wait_until": turn, "failures": 5}))
    world.looks(15)
    assert world.repairs == []
    assert "clock" not in world.kinds

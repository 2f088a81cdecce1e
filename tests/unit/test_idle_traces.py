"""Seeded traces of activity: a busy cluster is never released, an idle one after its warning.

The judging of nodes, their reader of logins and the decision of the watch are the real ones; what
else nodes see is a STAND-IN's (`support/activity.py`).
"""

import json
import random
import sys
from types import SimpleNamespace

import pytest

from gpubed.cluster.idle import decide
from gpubed.cluster.watch_memory import Warned
from gpubed.configuration.usage import NodeUse, put_together
from gpubed.spec.sections import Idle
from support.activity import HOUR, MINUTE, Node
from support.logins import Uploads
from support.node_use import FILES

POLICY = Idle(after="2 h", warning="30 min", then="release")
UNTIL = 10 * HOUR
# Looks of the timer are a minute apart, and a few seconds more; those of the watch come between.
SLACK = 3 * MINUTE


@pytest.fixture(scope="module")
def node_program():
    sys.path.insert(0, str(FILES))
    try:
        from gpubed_use import judging, machine, processes, program

        yield SimpleNamespace(
            judging=judging, machine=machine, processes=processes, program=program
        )
    finally:
        sys.path.remove(str(FILES))


class Played:
    """A cluster that is looked at until it is released, or the trace ends.

    Attributes:
        acts: What the watch does, and when.
        released: When it is released; None if it never is.
    """

    def __init__(self, node_program, nodes, seed):
        self._program = node_program
        self.nodes, self.acts, self.released = nodes, [], None
        draw = random.Random(f"watch {seed}")
        every = draw.choice((30.0, 60.0, 300.0))
        records = {name: self._program.judging.first() for name in nodes}
        timers = {name: draw.uniform(0, MINUTE) for name in nodes}
        warned, at = None, draw.uniform(0, every)
        while at < UNTIL:
            for name, node in nodes.items():
                while timers[name] < at:
                    records[name] = self._look(node, records[name], timers[name])
                    timers[name] += draw.uniform(60, 75)
                records[name] = self._look(node, records[name], at)
            use = put_together({name: self._told(record) for name, record in records.items()})
            if act := decide(use, warned, POLICY):
                self.acts.append((act, at))
                warned = Warned(use.idle_s, use.spell) if act == "warn" else None
                if act == "release":
                    self.released = at
                    return
            at += every

    def _look(self, node, record, second):
        return self._program.judging.fold(record, node.see(second), int(second // 3600))

    def _told(self, record):
        return NodeUse.model_validate_json(json.dumps(self._program.program.told(record)))

    @property
    def last_use(self):
        return max(node.last_use(self.released or UNTIL) for node in self.nodes.values())


def play(node_program, folder, seed, **kind):
    count = random.Random(seed).randint(1, 3)
    uploads = [Uploads(node_program, folder / str(n)) for n in range(count)]
    nodes = {
        f"node-{n}": Node(f"{seed} {n}", UNTIL, logins, **kind) for n, logins in enumerate(uploads)
    }
    return Played(node_program, nodes, seed)


@pytest.mark.parametrize("seed", range(8))
def test_a_busy_cluster_is_never_released(node_program, tmp_path, seed):
    """Every kind of use, with pauses of 24 minutes at most, on one node among others."""
    nodes = {
        "node-0": Node(f"{seed} quiet", UNTIL, quiet_from=0.0),
        "node-1": Node(f"{seed} busy", UNTIL, Uploads(node_program, tmp_path), busy=True),
    }
    played = Played(node_program, nodes, seed)
    assert played.released is None
    # A first use comes two hours after the start at the latest.
    assert [at for act, at in played.acts if act == "warn" and at > 2 * HOUR + SLACK] == []


@pytest.mark.parametrize("seed", range(8))
def test_an_idle_cluster_is_released_after_its_warning_and_not_before(node_program, tmp_path, seed):
    quiet = random.Random(f"quiet {seed}").uniform(0, 4 * HOUR)
    played = play(node_program, tmp_path, seed, quiet_from=quiet)
    assert played.released is not None
    assert played.acts[-2][0] == "warn"
    warned = played.acts[-2][1]
    assert played.released - warned >= POLICY.warning - 1
    assert played.released - played.last_use >= POLICY.after + POLICY.warning - SLACK
    late = played.released - played.last_use - POLICY.after - POLICY.warning
    assert late <= SLACK + 2 * 300


@pytest.mark.parametrize("seed", range(40, 46))
def test_whatever_happens_nobody_who_works_is_released(node_program, tmp_path, seed):
    """Pauses of any length: a warning that somebody sees and answers is taken back."""
    played = play(node_program, tmp_path, seed)
    if played.released is not None:
        assert played.released - played.last_use >= POLICY.after + POLICY.warning - SLACK
    for (act, at), (then, _) in zip(played.acts, played.acts[1:], strict=False):
        assert (act, then) in {("warn", "back"), ("back", "warn"), ("warn", "release")}
        uses = [use for node in played.nodes.values() for use, _, _ in node.used]
        boots = [boot for node in played.nodes.values() for boot in node.boots]
        if then == "back":
            assert any(moment > at - SLACK for moment in (*uses, *boots))

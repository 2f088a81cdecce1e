"""Ranks of job imagenet that are asked to end agree on the step after which they do.

What averages is a STAND-IN, in one process; that real ones
do it is seen in test_job_imagenet_ranks.py.
"""

import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

JOB = Path(__file__).parents[2] / "jobs/imagenet"


@pytest.fixture
def stopping(monkeypatch):
    monkeypatch.setitem(sys.modules, "averaging", SimpleNamespace(Averaging=object))
    monkeypatch.syspath_prepend(JOB)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    sys.modules.pop("stopping", None)
    import stopping

    monkeypatch.setattr(stopping.signal, "signal", lambda *_: None)
    monkeypatch.setattr(stopping.signal, "set_wakeup_fd", lambda *_, **__: None)
    yield stopping
    sys.modules.pop("stopping", None)


class Ranks:
    """STAND-IN for what averages: what another rank said is the test's."""

    def __init__(self):
        self.other = (False, 0.0)

    def gather(self, value):
        return [value, self.other]


@pytest.mark.parametrize("begun", [0, 50_000])
def test_they_meet_after_as_many_steps_as_the_slowest_does_in_three_seconds(stopping, begun):
    """Also where a training goes on: the steps of former ranks took these ones no time."""
    ranks = Ranks()
    stop = stopping.Stop(ranks, begun)
    assert stop.meets(begun + 1)
    ranks.other = (False, 0.5)
    assert not stop.agreed(begun + 1)
    assert [step for step in range(2, 10) if stop.meets(begun + step)] == [7, 8, 9]
    ranks.other = (False, 100.0)
    assert not stop.agreed(begun + 7)
    assert stop.meets(begun + 8), "a step that takes longer is a meeting"


PROGRAM = """
import sys, threading
from types import SimpleNamespace
sys.modules["averaging"] = SimpleNamespace(Averaging=object)
sys.path.insert(0, sys.argv[1])
sys.dont_write_bytecode = True
import stopping
stopping.MEET_S = 0.2
stop = stopping.Stop(SimpleNamespace(gather=lambda value: [value]), 0)
stop._slowest_s = 0.2
print(flush=True)
if sys.argv[2] == "stuck":
    threading.Event().wait(60)
if sys.argv[2] == "validates":
    with stop.at_length():
        threading.Event().wait(2)
step = 0
while not stop.agreed(step):
    threading.Event().wait(0.05)
    step += 1
sys.exit(7)
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("how", "code"), [("goes on", 7), ("stuck", 128 + signal.SIGTERM), ("validates", 7)]
)
def test_a_rank_that_is_stuck_ends_all_the_same_and_one_that_takes_its_time_does_not(how, code):
    """A lease's end asks minutes before: a checkpoint of a large model is written until then."""
    words = (sys.executable, "-c", PROGRAM, str(JOB), how)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as rank:
        rank.stdout.readline()
        late = threading.Timer(30, rank.kill)
        late.start()
        rank.terminate()
        assert rank.wait() == code
        late.cancel()

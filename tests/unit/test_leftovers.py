"""What an earlier run has left is found, named and ended; sessions are STAND-INs: shells here."""

import os
import shlex
import subprocess
import time
from types import SimpleNamespace

import pytest

from gpubed.jobs import leftovers
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import CommandResult
from support.samples import sample_allocation, sample_plan
from support.sessions import Session

pytestmark = pytest.mark.process

# Nobody else's: ranks of clusters on this machine are among its processes, and would be ended.
MARK = f"{leftovers.HEARTBEAT}_{os.getpid()}"


@pytest.fixture
def said():
    """What was said to nodes, in order."""
    return []


@pytest.fixture
def cluster(monkeypatch, said):
    class Here(Session):
        def run(self, command, *words, **_):
            line = command % tuple(map(shlex.quote, map(str, words))) if words else command
            said.append(line)
            line = line.removeprefix("sudo -n ")  # who runs this may look at its own
            done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False)
            return CommandResult(done.stdout, done.stderr, done.returncode, 0.0)

    monkeypatch.setattr(leftovers, "SSH", Here)
    for script in ("_FIND", "_END"):
        own = getattr(leftovers, script).replace(leftovers.HEARTBEAT, MARK)
        monkeypatch.setattr(leftovers, script, own)
    monkeypatch.setattr(leftovers, "_IS_OWNED", leftovers._IS_OWNED.replace("sleep 1", "sleep 0.1"))
    plan = sample_plan(nodes=[{"name": "node", "count": 1}])
    return Cluster(SimpleNamespace(), plan, sample_allocation(plan))


@pytest.fixture
def rank(tmp_path):
    """A process of a run, whose heartbeat's file says how that run is."""
    beat = tmp_path / "20260101-digits/.heartbeat"
    beat.parent.mkdir()
    beat.write_text("7\n")
    environment = {**os.environ, MARK: str(beat)}
    process = subprocess.Popen(["sleep", "60"], env=environment)
    yield process, beat
    process.kill()
    process.wait()


def test_what_has_no_owner_is_ended(cluster, rank):
    process, beat = rank
    os.utime(beat, (0, time.time() - 100))
    [said] = leftovers.end(cluster)
    assert said == (
        "run 20260101-digits is over, or lost its controller; its processes were ended: "
        "1 process(es) on node-0"
    )
    assert process.wait(5) == -15


def test_what_is_at_work_is_named_and_left_alone(cluster, rank):
    process, _ = rank
    [said] = leftovers.end(cluster)
    assert said.startswith("run 20260101-digits is still active (1 process(es) on node-0)")
    assert process.poll() is None


def test_what_is_known_to_be_over_is_ended_while_its_heartbeat_is_young(cluster, rank):
    """A connection broke, and its head waits for the next word still."""
    process, _ = rank
    [said] = leftovers.end(cluster, lambda run: run == "20260101-digits")
    assert said.startswith("run 20260101-digits is over, or lost its controller")
    assert process.wait(5) == -15


FORGED = ["-delete", "/x\n1 /y", r"/x\c", "relative"]


@pytest.mark.parametrize("forged", FORGED)
def test_what_a_process_says_of_itself_is_no_command(cluster, forged):
    """An account that may start nothing but its own must not have root end or delete others'."""
    name, value = MARK, forged
    process = subprocess.Popen(["sleep", "60"], env={**os.environ, name: value})
    try:
        granted_node = cluster.allocation.nodes[0]
        found = leftovers.processes(SimpleNamespace(), granted_node)
        assert set(found) <= {"/x"}
        assert all(pids == [str(process.pid)] for pids in found.values())
    finally:
        process.kill()
        process.wait()


def test_a_number_that_is_another_process_by_now_is_left_alone(cluster, rank, said):
    process, beat = rank
    beat.write_text("end\n")
    list(leftovers.end(cluster))
    assert process.wait(5) == -15
    with subprocess.Popen(["sleep", "60"]) as other:
        again = said[-1].removeprefix("sudo -n ").replace(str(process.pid), str(other.pid))
        subprocess.run(["sh", "-c", again], check=False)
        assert other.poll() is None
        other.kill()


def test_a_look_that_is_held_up_is_said_and_is_not_the_end_of_a_run(cluster, monkeypatch):
    held_up = leftovers._AS_ROOT.replace("KILL 30", "KILL 1")
    monkeypatch.setattr(leftovers, "_AS_ROOT", held_up)
    monkeypatch.setattr(leftovers, "_FIND", "sleep 60")
    [said] = leftovers.end(cluster)
    assert said.startswith("the search for jobs on node-0 took too long")

"""What a node does at the end of its lease, whoever is there.

The clocks are the test's. Processes are real ones, which the test started: of all others on this
machine it is told nothing. Slurm and nvidia-smi are STAND-INs.
"""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpubed.configuration import node_lease
from support import full_disk

FILES = Path(__file__).parents[2] / "roles/health/files"
END = datetime(2030, 1, 1, 12, tzinfo=UTC)
SAID = {
    "cluster": "u",
    "name": "lab",
    "until": END.isoformat(),
    "left_s": 3600.0,
    "warning": 1800,
    "stop": 600,
    "everyone": True,
}
BEAT = "/shared/runs/20300101-000000000-digits/.heartbeat"
# A program that keeps a checkpoint when it is asked to end, or that does not listen.
LISTENS = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit(7)); "
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "


@pytest.fixture
def node(monkeypatch, tmp_path):
    """A node whose clocks the test sets; `at` is what they show, in seconds before the end."""
    monkeypatch.syspath_prepend(str(FILES))
    monkeypatch.setattr(signal, "alarm", lambda _: None)  # it would end the tests, too
    from gpubed_health import program as health
    from gpubed_lease import judging, program, runs
    from gpubed_use import processes

    expected = tmp_path / "expected.json"
    expected.write_text('{"gpus": 0, "cluster": "u", "patience": 2}')
    monkeypatch.setattr(health, "EXPECTED", expected)
    monkeypatch.setattr(health, "STATE", tmp_path / "health.json")
    monkeypatch.setattr(health, "SPARE", tmp_path / "health.spare")
    monkeypatch.setattr(health, "HOOKS", tmp_path / "hooks")
    monkeypatch.setattr(health, "METRICS", tmp_path / "metrics/health.prom")
    monkeypatch.setattr(health, "LOOKS", ())
    monkeypatch.setattr(program, "STATE", tmp_path / "lease.json")
    monkeypatch.setattr(program, "SPARE", tmp_path / "lease.spare")
    monkeypatch.setattr(program, "METRICS", tmp_path / "metrics/lease.prom")
    found = SimpleNamespace(
        program=program, judging=judging, runs=runs, health=health, processes=processes
    )
    found.boot, found.uptime, found.wall = "b", 1000.0, END.timestamp() - 3600
    found.told, found.ran, found.mine, found.on_gpu = [], [], set(), []
    monkeypatch.setattr(program, "now", lambda: judging.Now(found.boot, found.uptime, found.wall))
    monkeypatch.setattr(program.machine, "tell", found.told.append)
    every = processes.every

    def mine():
        there = every() if found.mine else {}
        return {n: one for n, one in there.items() if _top(n, there) & found.mine}

    monkeypatch.setattr(runs.processes, "every", mine)
    monkeypatch.setattr(runs.shutil, "which", lambda _: "/usr/bin/nvidia-smi")

    def run(*words):
        found.ran.append(words)
        return 0, "".join(f"{number}\n" for number in found.on_gpu)

    monkeypatch.setattr(runs.command, "run", run)
    return found


def _top(number, every):
    found = set()
    while number in every and number not in found:
        found.add(number)
        number = every[number].parent
    return found


def tell(node, **changes):
    assert node.program.main("tell", json.dumps({**SAID, **changes})) == 0


def look(node, after_s=60.0):
    """Let time pass, look, and return the phase."""
    node.uptime += after_s
    node.wall += after_s
    assert node.program.main("look") == 0
    found = node.program.read()
    return found and found["phase"]


def pass_time(node, seconds):
    """Let looks follow each other as the timer has them."""
    for _ in range(int(seconds // 60)):
        look(node)


def held(node):
    state = node.health.read_state()["quarantine"]
    return state and state["reason"]


def test_an_end_is_told_prepared_and_kept(node):
    tell(node)
    assert look(node) == "runs"
    pass_time(node, 28 * 60)
    assert (node.told, held(node)) == ([], None)
    assert look(node) == "warns"
    assert node.told == [
        "gpubed: the lease of lab ends at 2030-01-01 12:00 UTC; 10 min before, jobs are asked to "
        "keep a checkpoint and end; more time: gpubed renew lab"
    ]
    pass_time(node, 19 * 60)
    assert (len(node.told), held(node)) == (1, None)
    assert look(node) == "stops"
    assert held(node) == "its lease ends at 2030-01-01 12:00 UTC: gpubed renew lab"
    assert node_lease.is_reason(held(node)), "what the controller knows it by"
    pass_time(node, 9 * 60)
    assert look(node) == "over"
    pass_time(node, 3600)
    assert len(node.told) == 3
    assert "no job runs any more" in node.told[-1]


@pytest.mark.parametrize("minutes", [35, 55, 80])
def test_a_renewal_takes_all_back(node, minutes):
    tell(node)
    pass_time(node, minutes * 60)
    assert node.told
    later = {"until": END.replace(day=2).isoformat(), "left_s": 86400.0}
    tell(node, **later)
    assert held(node) is None
    assert node.told[-1] == "gpubed: lab goes on: its lease now ends at 2030-01-02 12:00 UTC"
    assert look(node) == "runs"


@pytest.mark.parametrize("jump", [10 * 86400.0, -10 * 86400.0])
def test_a_clock_that_jumps_ends_nothing_early_and_nothing_late(node, jump):
    tell(node)
    node.wall += jump
    pass_time(node, 49 * 60)
    assert node.program.read()["phase"] == "warns"
    pass_time(node, 60)
    assert node.program.read()["phase"] == "stops"


@pytest.mark.parametrize(
    ("left_s", "wall"),
    [
        (60.0, 0),  # the controller's clock is ahead
        (3600.0, 7200),  # the node's is
    ],
)
def test_of_two_clocks_that_differ_the_later_end_counts(node, left_s, wall):
    node.wall += wall
    tell(node, left_s=left_s)
    assert look(node) == "runs"
    assert node.program.read()["left_s"] == 3540


def test_a_time_in_which_nobody_looked_decides_nothing_at_once(node):
    """A machine that slept: a controller may have renewed the lease meanwhile."""
    tell(node)
    assert look(node, 5 * 3600) == "runs"
    assert held(node) is None
    assert look(node) == "over"


def test_a_renewal_counts_though_the_disk_is_full(node, capsys):
    """It failed once monitoring could not be told, and its controller said that it had not come."""
    node.program.METRICS.parent.mkdir()
    tell(node)
    pass_time(node, 55 * 60)
    spares = (node.program.SPARE, node.health.SPARE)  # in memory
    with full_disk.filled(node.program.keeping, lambda path: path not in spares):
        tell(node, until=END.replace(day=2).isoformat(), left_s=86400.0)
    assert held(node) is None
    assert "no figures for monitoring: [Errno 28]" in capsys.readouterr().err


@pytest.fixture
def start(node, tmp_path):
    """A function that starts a real program, as a rank of a run where that is wanted."""
    started = []

    def start(program, *, is_rank=True):
        beside = tmp_path / "gpubed-rank"
        beside.write_text("#!/bin/sh\ntrap '' TERM\necho\nsleep 60\n")
        beside.chmod(0o755)
        file = tmp_path / "program.py"
        file.write_text(f"{program}print(flush=True); time.sleep(60)")
        command = f"exec {sys.executable} {file}"
        one = subprocess.Popen(
            ("sh", "-c", f"{beside} & {command}" if is_rank else command),
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "GPUBED_HEARTBEAT": BEAT},
            start_new_session=True,
        )
        started.append(one)
        node.mine.add(one.pid)
        for _ in range(2 if is_rank else 1):
            one.stdout.readline()
        return one

    yield start
    for one in started:
        with suppress(ProcessLookupError):
            os.killpg(one.pid, signal.SIGKILL)
        one.stdout.close()
        one.wait()


def ended(one):
    """Return how a program ended; None where it is at work."""
    time.sleep(0.5)
    return one.poll()


@pytest.mark.process
def test_a_rank_is_asked_once_and_ends_with_its_checkpoint(node, start):
    rank = start(LISTENS)
    tell(node)
    pass_time(node, 49 * 60)
    assert ended(rank) is None
    look(node)
    assert ended(rank) == 7


@pytest.mark.process
def test_a_rank_that_does_not_listen_has_until_the_end(node, start):
    rank = start(DEAF)
    tell(node)
    pass_time(node, 59 * 60)
    assert ended(rank) is None
    look(node)
    assert ended(rank) == -signal.SIGKILL


@pytest.mark.process
@pytest.mark.parametrize("everyone", [True, False])
def test_what_holds_a_gpu_goes_at_the_end_and_not_that_of_others(
    node, start, monkeypatch, everyone
):
    other = start(LISTENS, is_rank=False)
    node.on_gpu = [other.pid]
    tell(node, everyone=everyone)
    # STAND-IN: the session of a test may be no person's.
    monkeypatch.setattr(node.runs.processes, "people", lambda every, _: every)
    pass_time(node, 59 * 60)
    assert ended(other) is None
    look(node)
    assert ended(other) == (7 if everyone else None)


def test_a_job_of_slurm_is_asked_and_cancelled_through_it(node, monkeypatch):
    monkeypatch.setattr(node.runs.shutil, "which", lambda _: None)
    monkeypatch.setattr(node.runs.processes, "jobs", lambda _: {1: "slurm 12", 2: "slurm 12"})
    tell(node)
    pass_time(node, 55 * 60)
    assert node.ran == [("scancel", "--signal=TERM", "12")]
    pass_time(node, 5 * 60)
    assert node.ran[1:] == [("scancel", "12")]


@pytest.mark.process
def test_a_number_that_is_another_process_by_now_is_spared(node, start):
    rank = start(LISTENS)
    one = node.processes.every()[rank.pid]
    other = node.processes.Process(**{**one.__dict__, "began": one.began - 1})
    node.runs._send(rank.pid, other, signal.SIGTERM)
    assert ended(rank) is None
    node.runs._send(rank.pid, one, signal.SIGTERM)
    assert ended(rank) == 7

"""What a node writes down of its use.

Processes and terminals are real ones of this machine; nvidia-smi is a STAND-IN.
"""

import os
import pty
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from support import exposition
from support.node_use import HOUR, QUIET, fold


def test_the_first_look_is_a_use_and_idle_time_adds_up(use):
    assert fold(use, {})["idle_s"] == 0
    found = fold(use, {}, {}, {})
    assert found["idle_s"] == 120
    assert found["last"] == {"who": "", "what": "its start"}


GPU = {"utilization": 0.3, "held": [["alice", ""]]}
TYPED = {"terminals": {"3": ["alice", 1.0]}}


@pytest.mark.parametrize(
    ("before", "now", "last"),
    [
        ({}, {"ranks": [["alice", "20300101-digits"]]}, ("alice", "20300101-digits")),
        ({}, {"gpus": [GPU]}, ("alice", "a GPU computes")),
        ({}, {"gpus": [{**GPU, "utilization": None}]}, ("alice", "a GPU computes")),
        ({}, TYPED, ("alice", "a terminal")),
        (TYPED, {"terminals": {"3": ["alice", 2.0]}}, ("alice", "a terminal")),
        ({}, {"kernels": {"k": ["bob", "t", "idle"]}}, ("bob", "a notebook")),
        ({}, {"work": [["bob", "", 1.0], ["alice", "", 6.0]]}, ("alice", "programs compute")),
        ({}, {"mute": ["nvidia-smi does not tell: 9"]}, ("", "nvidia-smi does not tell: 9")),
        ({}, {"uptime": 900.0}, ("", "a time in which nobody looked")),
        ({}, {"boot": "another"}, ("", "its start")),
    ],
)
def test_each_use_is_one_and_says_whose(use, before, now, last):
    record = fold(use, before, before)
    assert record["idle_s"] == 60
    again = use.judging.fold(record, {**QUIET, "uptime": 220.0, **now}, HOUR)
    assert again["idle_s"] == 0
    assert (again["last"]["who"], again["last"]["what"]) == last
    assert again["spell"] != record["spell"]


@pytest.mark.parametrize(
    "always",
    [
        TYPED,
        {"kernels": {"k": ["bob", "t", "idle"]}},
        {"kernels": {"k": ["bob", "t", "starting"]}},
        {"gpus": [{"utilization": 0.0, "held": [["alice", ""]]}]},
        {"gpus": [{"utilization": None, "held": []}]},
        {"work": [["jupyter", "", 1.0]]},
    ],
)
def test_what_is_there_and_does_nothing_is_no_use(use, always):
    assert fold(use, always, always, always)["idle_s"] == 120


def process(use, **changes):
    plain = {"parent": 1, "began": 5, "own": 0.0, "children": 0.0, "name": "python", "uid": 1000}
    plain |= {"group": "/system.slice/x.service", "terminal": False}
    return use.processes.Process(**{**plain, **changes})


@contextmanager
def rank(folder, environment):
    """A rank of a run, and what looks beside it whether the run is still wanted."""
    beside = folder / "gpubed-rank"
    beside.write_text("#!/bin/sh\nsleep 60\n")
    beside.chmod(0o755)
    script = f"{beside} & echo $!; exec sleep 60"
    with subprocess.Popen(
        ("sh", "-c", script),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        start_new_session=True,
    ) as started:
        started.stdout.readline()
        time.sleep(0.3)
        try:
            yield started.pid
        finally:
            os.killpg(started.pid, 9)


@pytest.mark.process
def test_ranks_of_a_run_are_found_and_called_as_the_run(use, tmp_path):
    beat = {"GPUBED_HEARTBEAT": "/shared/runs/20300101-000000000-digits/.heartbeat"}
    with rank(tmp_path, beat) as pid:
        every = use.processes.every()
        heads = use.processes.jobs(every)
        assert heads[pid] == "20300101-000000000-digits"
        assert use.processes.job_of(pid, every, heads) == "20300101-000000000-digits"
        assert use.processes.job_of(os.getpid(), every, {}) == ""


@pytest.mark.process
@pytest.mark.parametrize("name", ["/x\n/.heartbeat", "/" + "a" * 200 + "/b"])
def test_a_run_cannot_be_called_anything(use, tmp_path, name):
    with rank(tmp_path, {"GPUBED_HEARTBEAT": name}) as pid:
        assert use.processes.jobs(use.processes.every())[pid] == "run"


def test_a_key_is_seen_and_what_is_written_is_not(use, monkeypatch):
    """On a real terminal: the time of what a program read, and not of what was written."""
    ours, theirs = pty.openpty()
    try:
        name = Path(os.ttyname(theirs)).name
        os.utime(f"/dev/pts/{name}", (1.0, 1.0))
        every = use.machine.terminals
        mine = lambda: (one for one in every() if one[0] == name)  # noqa: E731
        monkeypatch.setattr(use.machine, "terminals", mine)
        use.machine.tell("gpubed: nobody has used lab\x1b[2J")
        assert os.read(ours, 1000).decode() == "\r\r\n\agpubed: nobody has used lab[2J\r\r\n"
        assert {n: at for n, _, at in use.machine.terminals()}[name] == 1.0
        os.write(ours, b"\n")
        os.read(theirs, 10)
        assert {n: at for n, _, at in use.machine.terminals()}[name] > 1e9
    finally:
        os.close(ours)
        os.close(theirs)


def test_no_account_hides_others_by_the_number_of_its_ranks_and_runs(use, monkeypatch):
    """A hundred ranks, each in a run of its own, and 300 of them in a day."""
    asked = []
    monkeypatch.setattr(use.processes, "_run", lambda number: asked.append(number) or str(number))
    every = {1: process(use, uid=0)}
    for number in range(10, 210, 2):
        every[number] = process(use)
        every[number + 1] = process(use, parent=number, name="gpubed-rank")
    heads = use.processes.jobs(every)
    assert len(asked) == 64
    assert sorted(heads) == list(range(10, 210, 2))
    ranks = [[["bob", f"run-{number}", 40.0]] for number in range(300)]
    record = fold(use, {}, *({"work": work} for work in ranks), {"work": [["alice", "run", 9.0]]})
    rows = use.judging.total(record)
    assert len(rows) == 202
    assert sum(row["cpu_s"] for row in rows if row["user"] == "bob") == 12_000
    assert rows[0] == {"user": "alice", "job": "run", "cpu_s": 9, "gpu_s": 0, "held_s": 0}


@pytest.mark.process
@pytest.mark.parametrize("name", ['a"b\\', "a\nb", "a\udcffb", "a\x00\u2028b"])
def test_whatever_accounts_and_runs_are_called_prometheus_reads_all_figures(use, name):
    record = fold(use, {}, {"work": [[name, name, 40.0], ["alice", "", 9.0]]})
    use.program.METRICS.parent.mkdir()
    use.program.publish(record)
    text = use.program.METRICS.read_bytes().decode()
    told = name.replace("\udcff", "?")
    figures = exposition.read(text)
    assert figures["gpubed_use_seconds", ("job", told), ("of", "cpu"), ("user", told)] == 40
    assert figures["gpubed_use_seconds", ("job", ""), ("of", "cpu"), ("user", "alice")] == 9
    if shutil.which("promtool"):
        said = subprocess.run(
            ("promtool", "check", "metrics"), input=text.encode(), capture_output=True, check=False
        )
        assert said.returncode == 0, said

"""A job ends with its owner. The connection to the head is a STAND-IN: a shell of this machine."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpubed.jobs.launchers import ssh
from support import local_launch

pytestmark = pytest.mark.process

WAIT_S = 15


@pytest.fixture
def launch(monkeypatch, tmp_path):
    """A function that starts a command as the head does."""
    (tmp_path / "run").mkdir()
    start = local_launch.runner(monkeypatch, tmp_path, tmp_path / "run")
    start.heartbeat = tmp_path / "run/.heartbeat"
    return start


def runs(pid):
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for(condition):
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_lines_and_the_exit_code_come_back(launch):
    lines = []
    assert launch('echo "$NAME"; echo two >&2; exit 3', lines.append) == 3
    assert lines == ["a b", "two"]
    assert launch.heartbeat.read_text() == "end\n"


ENDLESS = "head -c 200000000 /dev/zero | tr '\\0' x; printf ' y \\nlast\\n'"


@pytest.mark.timeout(60)
def test_a_line_without_end_comes_in_pieces_and_takes_no_memory():
    program = """
import re, sys
from pathlib import Path
from gpubed.jobs.launchers import ssh
sizes, last = [], []
def hear(line):
    sizes.append(len(line))
    last[:] = [*last[-1:], line]
command = ["sh", "-c", sys.argv[1]]
ssh._own(command, hear, lambda: "")
peak = int(re.search("VmHWM:.*?([0-9]+)", Path("/proc/self/status").read_text())[1]) // 1024
print(sum(sizes), max(sizes), peak, last[0][-2:], last[1])
"""
    done = subprocess.run(
        [sys.executable, "-c", program, ENDLESS], capture_output=True, text=True, check=True
    )
    told, longest, peak, *words = done.stdout.split()
    assert int(told) == 200_000_000 + len(" y") + len("last")
    assert int(longest) <= 2**16
    assert int(peak) < 150, "MiB"
    assert words == ["y", "last"]


def test_while_somebody_waits_there_are_heartbeats(launch, monkeypatch):
    monkeypatch.setattr(ssh, "_BEAT_S", 0.1)
    # A beat is written where the one before was emptied, so a look may come between the two.
    look = "until seen=$(cat .heartbeat); [ $seen ]; do sleep 0.01; done; echo $seen >seen"
    assert launch(f"sleep 1; {look}") == 0
    assert int((launch.heartbeat.parent / "seen").read_text()) > 2


def test_a_job_that_is_not_wanted_any_more_ends_and_says_its_last(launch, monkeypatch):
    monkeypatch.setattr(ssh, "_BEAT_S", 0.1)
    lines = []
    last = "trap 'echo last; exit 4' TERM; echo first; while :; do sleep 0.1; done"
    assert launch(last, lines.append, lambda: "enough" if lines else "") != 0
    assert lines[0] == "first"
    assert "last" in lines
    assert launch.heartbeat.read_text() == "end\n"


def test_an_interruption_ends_the_job(launch):
    pids = []

    def interrupt(line):
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch("echo $$; sleep 60", interrupt)
    assert not runs(pids[0])


def test_a_cut_connection_ends_the_job(launch, monkeypatch):
    """Nobody says goodbye: the lines just stop to come."""
    monkeypatch.setattr(ssh, "SILENCE_S", 1)
    monkeypatch.setattr(ssh, "_BEAT_S", 60)
    pids = []
    assert launch("echo $$; sleep 60", pids.append) != 0
    assert not runs(int(pids[0]))
    assert launch.heartbeat.read_text() == "end\n"


def test_a_killed_controller_ends_the_job(launch, tmp_path):
    program = """
import sys
from gpubed.jobs.launchers import ssh
ssh._own(["sh", "-c", sys.argv[1]], lambda line: print(line, flush=True), lambda: "")
"""
    start = ssh._START.format(
        folder=tmp_path / "run", command="sh -c 'echo $$; sleep 60'", silence=60
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program, f"bash -c {ssh.shlex.quote(start)}"],
        stdout=subprocess.PIPE,
        text=True,
    )
    pid = int(owner.stdout.readline())
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    wait_for(lambda: not runs(pid))

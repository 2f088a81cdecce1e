"""An interrupted run ends soon, whatever it waits for."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.process

# Waits, as a pool of sessions that do not answer does, and has a child that does not listen.
STUCK = """
import subprocess, sys, time
from concurrent.futures import ThreadPoolExecutor
from gpubed.engines import interruption
interruption.handle(limited=True)
child = subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 60 & wait; sleep 60"])
with ThreadPoolExecutor() as pool:
    waiting = pool.submit(time.sleep, 60)
    print(child.pid, flush=True)
    waiting.result()
"""


def start(program):
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    return process, int(process.stdout.readline())


def runs(pid):
    """Whether a process does something; one that nobody waited for is only a name."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("number", [signal.SIGTERM])
def test_what_waits_is_ended_with_all_that_it_started(number):
    process, child = start(STUCK)
    process.send_signal(number)
    began = time.monotonic()
    _, said = process.communicate(timeout=30)
    assert time.monotonic() - began < 10
    assert process.returncode == 128 + number
    assert "run the same command again" in said
    assert not runs(child)


TWICE = """
import os, signal, sys, time
from gpubed import cli
def stuck(standalone_mode):
    print(os.getpid(), flush=True)
    time.sleep(60)
cli.requested_verb, cli.listing, cli.build = lambda _: "run", lambda: stuck, lambda _: stuck
cli.main()
"""


@pytest.mark.parametrize("gap_s", [0.0, 0.05])
def test_two_signals_one_after_the_other_end_it_as_one_does(gap_s):
    """`timeout`, and a terminal that closes, send two; the second must not cut short the first."""
    process, _ = start(TWICE)
    process.send_signal(signal.SIGINT)
    time.sleep(gap_s)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert "Traceback" not in said


def test_a_hangup_that_was_ignored_is_ignored_still():
    """`nohup gpubed up lab &` outlives its terminal."""
    program = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)" + STUCK
    process, _ = start(program)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(15) == 143


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_a_verb_says_which_signal_ended_it(number, code, tmp_path):
    program = """
import subprocess, sys, time
from gpubed import cli
from gpubed.cli.commands import doctor
def command():
    "Wait."
    print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
    time.sleep(60)
doctor.command = command
sys.argv = ["gpubed", "doctor"]
cli.main()
"""
    process, child = start(program)
    process.send_signal(number)
    _, said = process.communicate(timeout=15)
    assert process.returncode == code, said
    assert not runs(child)
    assert "interrupted" in said
    assert "Traceback" not in said


def test_of_what_ends_by_ctrl_c_nothing_is_told():
    """As a tunnel that is open until then."""
    lines = """
import os, signal
from gpubed import cli
from gpubed.engines import interruption
def until_ctrl_c(standalone_mode):
    interruption.end_quietly()
    os.kill(os.getpid(), signal.SIGINT)
cli.requested_verb, cli.build = lambda _: "open", lambda _: until_ctrl_c
cli.main()
"""
    done = subprocess.run(
        [sys.executable, "-c", lines], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, "", "")

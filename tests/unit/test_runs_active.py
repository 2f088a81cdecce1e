"""Runs that are at work: started in the background, followed, and ended from elsewhere."""

import json
import signal
import subprocess
import sys
import threading
import time

import pytest
from typer.testing import CliRunner

from gpubed import cli
from gpubed.core import runlock
from gpubed.core.errors import PrerequisiteMissing
from gpubed.jobs.runs import active, record
from gpubed.jobs.runs.record import Record, Request
from support.samples import granted_cluster, sample_origin

pytestmark = pytest.mark.process

# A process that is at a run: prints what it is told to, and goes on until it is interrupted.
AT_IT = """
import sys, pathlib
from gpubed.jobs.runs import record
folder = pathlib.Path(sys.argv[1])
begun = record.Record.model_validate_json(sys.stdin.readline())
with record.kept(folder, begun), (folder / "output.log").open("w", buffering=1) as log:
    print("begun", flush=True)
    for line in sys.stdin:
        log.write(line)
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    monkeypatch.setenv("GPUBED_ROOT", str(tmp_path))
    return granted_cluster(tmp_path)


@pytest.fixture
def start(cluster):
    """A function that starts a run in a process of its own."""
    started = []

    def one(name):
        folder = cluster.runs / name
        folder.mkdir(parents=True)
        begun = Record(
            run_id=name,
            request=Request(job="digits"),
            origin=sample_origin(),
            command=("x",),
            values={},
            world_size=1,
            started=record.now(),
        )
        process = subprocess.Popen(
            [sys.executable, "-c", AT_IT, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            # What starts these tests in the background has it ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        process.stdin.write(begun.model_dump_json(by_alias=True) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "begun\n"
        started.append(process)
        return process

    yield one
    for process in started:
        process.kill()
        process.wait()


def call(*words):
    return CliRunner().invoke(cli.build(), [*words], standalone_mode=False, catch_exceptions=False)


def say(process, text):
    process.stdin.write(text)
    process.stdin.flush()


def test_what_a_run_prints_is_followed_to_its_end(cluster, start):
    process = start("1-digits")
    say(process, "one\n")
    lines = []

    def read():
        lines.extend(active.output(cluster, "1-digits", follow=True))

    reader = threading.Thread(target=read)
    reader.start()
    deadline = time.monotonic() + 20
    say(process, "two\n")
    while len(lines) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert reader.is_alive()
    say(process, "three\n")
    process.stdin.close()
    process.wait(20)
    reader.join(20)
    assert not reader.is_alive()
    assert lines == ["one", "two", "three"]
    assert [*active.output(cluster, "1-digits")] == lines


def test_a_run_is_ended_from_elsewhere(cluster, start):
    process = start("1-digits")
    done = call("cancel", "lab", "--json")
    assert json.loads(done.stdout)["status"] == "interrupted"
    process.wait(20)
    assert runlock.holder(cluster.runs / "1-digits") is None
    assert "interrupted already" in call("cancel", "lab", "last").stdout
    assert "no run of lab is at work" in call("cancel", "lab").stdout


def test_nobody_else_is_interrupted(cluster, start):
    """The lock's name for its holder is a number that another container may use, too."""
    start("1-digits")
    lock = cluster.runs / "1-digits" / "lock"
    said = json.loads(lock.read_text())
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    lock.write_text(json.dumps({**said, "pid": bystander.pid}))
    with pytest.raises(PrerequisiteMissing, match="cannot be seen from here"):
        active.end(cluster, "1-digits")
    lock.write_text(json.dumps({**said, "host": "elsewhere"}))
    with pytest.raises(PrerequisiteMissing, match="started on elsewhere"):
        active.end(cluster, "1-digits")
    assert bystander.poll() is None
    bystander.communicate(b"\n")

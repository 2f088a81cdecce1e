"""`gpubed-exit`: a rank that fails leaves why in the run's folder; run for real."""

import json
import os
import signal
import subprocess
import time

import pytest

from gpubed.jobs import causes
from support import by_path, machines

PROGRAM = machines.ROOT / "roles/horovod/files/gpubed-exit"


@pytest.fixture
def start(tmp_path):
    """Return a function that starts rank 1 of a run."""

    def run(*words, **environment):
        given = {"GPUBED_RUN_DIR": str(tmp_path), "HOROVOD_RANK": "1", **environment}
        return subprocess.Popen(
            [PROGRAM, *words],
            env={"PATH": os.environ["PATH"], **given},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    return run


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "code", "kept"),
    [
        (["sh", "-c", "kill -SEGV $$"], 139, -signal.SIGSEGV),
        (["sh", "-c", "exit 3"], 3, 3),
        (["/nowhere/train"], 127, 127),
    ],
)
def test_how_a_rank_failed_is_kept(start, tmp_path, words, code, kept):
    began = time.time()
    process = start(*words)
    process.communicate(timeout=20)
    assert process.returncode == code
    end = causes.ends(tmp_path, 2)[1]
    assert (end.code, end.memory) == (kept, None)
    assert began <= end.at <= time.time()


@pytest.mark.process
def test_a_rank_that_ends_well_leaves_nothing(start, tmp_path):
    process = start("echo", "a b")
    assert process.communicate(timeout=20)[0] == "a b\n"
    assert causes.ends(tmp_path, 2) == {}


@pytest.mark.process
def test_a_signal_reaches_the_rank_once(start):
    script = "trap 'echo got' TERM; echo there; for n in $(seq 20); do sleep 0.1; done; exit 4"
    processes = [start("sh", "-c", script) for _ in range(8)]
    for process in processes:
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGTERM)
    for process in processes:
        said, _ = process.communicate(timeout=20)
        assert said.splitlines().count("got") == 1
        assert process.returncode == 4


@pytest.mark.process
def test_the_lines_of_a_step_of_slurm_have_their_rank(start):
    process = start("sh", "-c", "printf 'a\\nb'; printf '1%%\\r2%%\\n' >&2", SLURM_STEP_ID="0")
    said = process.communicate(timeout=20)[0].splitlines()
    assert [line for line in said if "stdout" in line] == ["[1]<stdout>:a", "[1]<stdout>:b"]
    assert [line for line in said if "stderr" in line] == ["[1]<stderr>:1%", "[1]<stderr>:2%"]


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_process_that_the_kernel_killed_is_told_with_the_limit(tmp_path, monkeypatch, version):
    program = by_path.load(PROGRAM, "gpubed_exit")
    most, peak = {
        "v1": ("memory.limit_in_bytes", "memory.max_usage_in_bytes"),
        "v2": ("memory.max", "memory.peak"),
    }[version]
    inner = tmp_path / "node/step"
    inner.mkdir(parents=True)
    (inner / most).write_text(f"{2**63 - 4096}\n" if version == "v1" else "max\n")
    (inner.parent / most).write_text("4096\n")
    (inner.parent / peak).write_text("4000\n")
    events = (inner.parent if version == "v2" else tmp_path) / "memory.events"
    events.write_text("low 0\noom 1\noom_kill 0\n")
    monkeypatch.setattr(program, "VMSTAT", events)
    own = [(folder, most, peak) for folder in (inner, inner.parent)]
    monkeypatch.setattr(program, "cgroups", lambda: own)
    before = program.kills()
    assert program.memory(before) is None
    events.write_text("low 0\noom 1\noom_kill 1\n")
    assert program.memory(before) == {"limit": 4096, "peak": 4000}


def test_a_full_file_system_is_named(monkeypatch):
    program = by_path.load(PROGRAM, "gpubed_exit")
    monkeypatch.setattr(program, "FULL", 2**80)
    assert json.loads(json.dumps(program.full()))["/"] > 0

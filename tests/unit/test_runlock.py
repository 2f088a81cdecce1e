"""One run at a time; no worker outlives its run; a dead holder holds nobody back."""

import getpass
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpubed.core import runlock
from gpubed.core.errors import GpubedError, Locked

pytestmark = pytest.mark.process

HOLD = """
import sys, time
from pathlib import Path
from gpubed.core import runlock
with runlock.hold(Path(sys.argv[1]), "up"):
    print("held", flush=True)
    time.sleep(60)
"""


OURS = """
import sys
from pathlib import Path
from gpubed.core import runlock
state = Path(sys.argv[1])
print(runlock.is_ours(runlock.measurer(state), state))
"""


SHARE = """
import sys
from pathlib import Path
from gpubed.core import runlock
with runlock.measuring(Path(sys.argv[1]), sys.argv[2], shared=True):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def share(tmp_path):
    """A function that has another process measure beside others; returns what ends that."""
    begun = []

    def start(verb):
        process = subprocess.Popen(
            [sys.executable, "-c", SHARE, str(tmp_path), verb],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        assert process.stdout.readline() == "held\n"
        return lambda: process.communicate(timeout=10)

    yield start
    for process in begun:
        process.kill()
        process.wait()


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_the_second_run_is_refused_and_told_who_holds_it(tmp_path, holder):
    with pytest.raises(Locked) as caught, runlock.hold(tmp_path, "down"):
        pass
    assert caught.value.exit_code == 5
    assert f"pid {holder.pid}" in caught.value.message


def test_a_killed_holder_holds_nobody_back(tmp_path, holder):
    holder.kill()
    holder.wait()
    with runlock.hold(tmp_path, "up") as ended:
        assert ended == []


def test_a_worker_that_outlived_its_run_is_ended(tmp_path):
    environment = {**os.environ, runlock.WORKER: str(tmp_path)}
    orphan = subprocess.Popen(["sleep", "60"], env=environment)
    stranger = subprocess.Popen(["sleep", "60"], env={**environment, runlock.WORKER: "/other"})
    try:
        with runlock.hold(tmp_path, "up") as ended:
            assert ended == [orphan.pid]
        assert orphan.wait(5) == -signal.SIGTERM
        assert stranger.poll() is None
    finally:
        stranger.kill()
        orphan.kill()


def test_of_several_who_measure_nobody_is_named_who_has_ended(tmp_path, share):
    end_first = share("first")
    end_second = share("second")
    assert runlock.measurer(tmp_path).verb == "second"
    end_second()
    with pytest.raises(Locked, match="held by another run"), runlock.measuring(tmp_path, "bench"):
        pass
    end_first()
    assert runlock.measurer(tmp_path) is None
    with runlock.measuring(tmp_path, "bench"):
        assert runlock.measurer(tmp_path).verb == "bench"


def test_who_measures_is_nobody_else_to_the_workers_of_its_run(tmp_path):
    """Nodes are configured and verified in a process that the engine starts."""

    def asked():
        return subprocess.check_output([sys.executable, "-c", OURS, tmp_path], text=True).strip()

    with runlock.measuring(tmp_path, "watch"):
        with runlock.hold(tmp_path, "up"):
            assert asked() == "True"
        assert asked() == "False"


def test_another_users_lock_says_whose_it_is_and_nobody_waits_for_it(tmp_path, monkeypatch):
    """It stays when his run has ended; to wait for that would be to wait for ever."""
    (tmp_path / "lock").touch()

    def refused(*_args, **_options):
        raise PermissionError

    monkeypatch.setattr(Path, "open", refused)
    monkeypatch.setattr(runlock.os, "open", refused)
    for look in (runlock.require_free, lambda state: runlock.hold(state, "up").__enter__()):
        with pytest.raises(GpubedError, match=f"belongs to {getpass.getuser()}") as caught:
            look(tmp_path)
        assert not isinstance(caught.value, Locked)

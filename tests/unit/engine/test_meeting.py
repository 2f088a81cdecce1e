"""The folders where a run's processes meet: what killed runs leave goes, and nothing else."""

import os
import socket
import subprocess
import sys
import tempfile

import pytest

from gpubed.engines.embedded import meeting

# Waits in its folder until it is killed.
RUN = """
import socket, time
from gpubed.engines.embedded import meeting
with meeting.folder() as folder:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(folder / meeting.PROVIDER))
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def place(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("t")
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def make(place, name, mode=0o700, old=True, sockets=("engine", "provider")):
    folder = place / name
    folder.mkdir()
    for one in sockets:
        with socket.socket(socket.AF_UNIX) as ours:
            ours.bind(str(folder / one))
    folder.chmod(mode)
    if old:
        age(folder)
    return folder


def age(folder):
    os.utime(folder, (1, 1))


def test_it_is_there_for_its_run_alone(place):
    with meeting.folder() as folder:
        assert folder.parent == place
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "engine").touch()
    assert list(place.iterdir()) == []


@pytest.mark.process
def test_what_a_killed_run_left_is_removed_by_the_next(place):
    with subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE, text=True) as run:
        left = place / run.stdout.readline().strip()
        age(left)
        with meeting.folder():
            assert left.exists(), "it is at work"
        age(left)
        run.kill()
        run.wait()
    with meeting.folder():
        assert not left.exists()


def test_nothing_else_is_touched(place):
    make(place, "gpubed-left")
    kept = [
        make(place, "gpubed-young", old=False),
        make(place, "gpubed-open", mode=0o755),
        make(place, "gpubed-other", sockets=("mine",)),
        make(place, "others-left"),
    ]
    (place / "gpubed-file").write_text("")
    (place / "gpubed-link").symlink_to(kept[1])
    wheel = make(place, "gpubed-wheel-1", sockets=())
    (wheel / "engine").write_text("")
    age(wheel)
    listening = make(place, "gpubed-listening", sockets=())
    with socket.socket(socket.AF_UNIX) as ours:
        ours.bind(str(listening / "provider"))
        ours.listen()
        age(listening)
        with meeting.folder() as folder:
            left = {path.name for path in place.iterdir()}
    names = {*(path.name for path in kept), wheel.name, listening.name, folder.name}
    assert left == {*names, "gpubed-file", "gpubed-link"}

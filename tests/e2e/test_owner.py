"""A job ends with its owner, whoever goes first: the controller, or the head's network."""

import json
import os
import signal
import subprocess
import time

import pytest

from gpubed.core.paths import Project
from gpubed.nodes import allocation

pytestmark = [pytest.mark.faults, pytest.mark.e2e, pytest.mark.docker]

RANKS = "pgrep --full '[m]ain.py --' || true"


def inside(cluster, name, command):
    """Run a command in a node without its network."""
    granted = allocation.load(Project(cluster.root).cluster(cluster.name).allocation)
    done = subprocess.run(
        ["docker", "exec", granted.node(name).id, "sh", "-c", command],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def ranks(cluster):
    names = [node["name"] for node in cluster.json("status", rc=None)["nodes"]]
    return {name: inside(cluster, name, RANKS) for name in names}


def none_left(cluster, within):
    began = time.monotonic()
    while any(ranks(cluster).values()):
        assert time.monotonic() - began < within, ranks(cluster)
        time.sleep(2)


@pytest.fixture
def training(cluster):
    """A job that would go on for hours, its ranks at work on every node."""
    process = cluster.start(
        *("run", cluster.name, "digits", "--set", "epochs=1000000"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and not all(ranks(cluster).values()):
        time.sleep(1)
    time.sleep(10)
    yield process
    process.kill()
    process.wait()


def test_ranks_end_when_the_controller_is_killed(cluster, training):
    training.kill()
    none_left(cluster, within=30)


def test_the_next_run_is_not_in_the_way_of_what_is_left(cluster, training):
    os.kill(training.pid, signal.SIGSTOP)  # it is there, and says nothing
    done = cluster.call("run", "digits", "--json")
    assert "still active" in done.stderr
    assert json.loads(done.stdout)["status"] == "ok"
    none_left(cluster, within=120)


def test_ranks_end_when_the_head_is_cut_off(cluster, training):
    granted = allocation.load(Project(cluster.root).cluster(cluster.name).allocation)
    prefix = f"gpubed-{cluster.name}-{granted.uuid[:8]}"
    for purpose in ("control", "experiment"):
        cut = ["docker", "network", "disconnect", f"{prefix}-{purpose}", granted.head.id]
        subprocess.run(cut, check=True, capture_output=True)
    none_left(cluster, within=120)
    assert training.wait(60) == 1
    status = cluster.json("up")
    assert status["state"] == "ready"
    assert status["verification"]["failed"] == 0


ALONE = "pgrep --full '[s]leep 86399' || true"


def test_a_run_of_jupyterlab_is_seen_by_the_next_and_ends_with_its_launcher(cluster):
    names = [node["name"] for node in cluster.json("status")["nodes"]]
    start = "cd /tmp && nohup gpubed-horovodrun -- sleep 86399 >/dev/null 2>&1 &"
    inside(cluster, names[0], f'sudo -u jupyter bash -lc "{start}"')
    began = time.monotonic()
    while not all(inside(cluster, name, ALONE) for name in names):
        assert time.monotonic() - began < 60
        time.sleep(1)
    assert "still active" in cluster.call("run", "digits").stderr
    inside(cluster, names[0], "pkill --signal KILL --full '[/]horovodrun '")
    began = time.monotonic()
    while any(inside(cluster, name, ALONE) for name in names):
        assert time.monotonic() - began < 90
        time.sleep(1)

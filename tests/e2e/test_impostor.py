"""A whole cluster, and somebody in a worker's place: jobs, verification, and the way back."""

import subprocess
import time

import pytest

from support.impostor import Granted

pytestmark = [pytest.mark.services, pytest.mark.e2e, pytest.mark.docker]


@pytest.mark.parametrize("controller", ["--gloo", "--mpi"])
def test_horovodrun_under_way(cluster, controller):
    """It remembers for an hour whom it could log in to, and looks at keys all the same."""
    granted = Granted(cluster)
    run = f"bash -lc 'gpubed-horovodrun {controller} -- true' 2>&1; echo $?"
    wait = "touch /tmp/once; until [ -e /tmp/swapped ]; do sleep 0.2; done"
    words = ("ssh", cluster.name, "node-0", "--", f"{run}; {wait}; {run}")
    try:
        with cluster.start(*words, stdout=subprocess.PIPE) as running:
            while not granted.inside("node-0", "ls /tmp/once || true"):
                time.sleep(0.2)
            granted.swap("node-2")
            before = granted.logins()
            granted.inside("node-0", "touch /tmp/swapped")
            said = running.communicate(timeout=300)[0]
        assert "Host key verification failed" in said
        assert int(said.splitlines()[-1]) != 0
        assert granted.logins() == before
    finally:
        granted.inside("node-0", "rm -f /tmp/once /tmp/swapped")
        cluster.call("up", "--refresh")


@pytest.fixture(scope="module")
def swapped(cluster):
    granted = Granted(cluster)
    granted.swap("node-2")
    yield granted
    cluster.call("up", "--refresh")


@pytest.mark.parametrize("controller", ["--gloo", "--mpi"])
def test_horovodrun_starts_no_rank_there(swapped, controller):
    before = swapped.logins()
    command = f"bash -lc 'gpubed-horovodrun {controller} -- true' 2>&1; echo $?"
    said = swapped.cluster.node("head", command)
    assert int(said.splitlines()[-1]) != 0
    assert swapped.logins() == before, said
    assert "Host key verification failed" in said


def test_horovod_itself_asks_for_checked_keys(swapped):
    search = "grep -rlE 'StrictHostKeyChecking[= ]no' /shared/env/current/lib || true"
    found = swapped.cluster.node("head", search).split()
    assert [path for path in found if "/horovod/" in path] == []


def test_a_run_leaves_it_out_and_says_whose_key_it_saw(swapped):
    before = swapped.logins()
    result = swapped.cluster.json("run", "digits")
    assert result["world_size"] == 2
    for fingerprint in (swapped.owns["node-2"], swapped.seen["node-2"]):
        assert fingerprint in result["left_out"]["node-2"]
    assert swapped.logins() == before


@pytest.mark.parametrize("verb", ["verify", "up", "configure"])
def test_nothing_else_goes_there_either(swapped, verb):
    before = swapped.logins()
    swapped.says_whose(swapped.cluster.call(verb, rc=1).stderr, "node-2")
    assert swapped.logins() == before


def test_the_way_back_that_the_refusal_names(swapped):
    cluster = swapped.cluster
    cluster.call("up", "--refresh")
    assert cluster.node("node-0", "ssh -o BatchMode=yes node-2 hostname") == "node-2\n"
    assert cluster.json("verify")["verification"]["failed"] == 0
    assert cluster.json("run", "digits")["world_size"] == 3

"""`gpubed watch` brings a node back and ends with its cluster.

As docs/how-to/watch.md and docs/how-to/chaos.md say.
"""

import json
import signal
import subprocess
import time

import pytest

from support.cluster import labelled

pytestmark = [pytest.mark.e2e, pytest.mark.docker]
EVERY_S, PATIENCE_S = 5, 240


def wait_for(told, *, that, process):
    """Read events until one is of that kind; return all up to it."""
    deadline, events = time.monotonic() + PATIENCE_S, []
    while time.monotonic() < deadline:
        events = [json.loads(line) for line in told.read_text().splitlines() if line]
        if any(event["event"] == that for event in events):
            return events
        assert process.poll() is None, "it ended"
        time.sleep(0.5)
    raise AssertionError(f"no {that} within {PATIENCE_S} s: {events}")


def remove_node(cluster, name):
    wanted = ["--filter", f"label=gpubed.name={cluster.name}", "--filter", f"name={name}$"]
    listed = subprocess.run(
        ["docker", "ps", "-aq", *wanted], capture_output=True, text=True, check=True
    )
    [container] = listed.stdout.split()
    subprocess.run(["docker", "rm", "--force", container], capture_output=True, check=True)


@pytest.fixture
def watched(bare, tmp_path):
    """A cluster of two nodes, its watch, and what that tells."""
    bare.call("up")
    told = tmp_path / "told.jsonl"
    with told.open("w") as out:
        words = ("watch", bare.name, "--every", f"{EVERY_S}s", "--json")
        process = bare.start(*words, stdout=out, stderr=subprocess.PIPE)
        try:
            wait_for(told, that="started", process=process)
            yield bare, process, told
        finally:
            process.kill()
            process.communicate()


def test_a_node_that_is_removed_comes_back_and_the_log_says_why(watched):
    cluster, process, told = watched
    remove_node(cluster, "node-1")
    events = wait_for(told, that="repair", process=process)
    assert [event["event"] for event in events] == ["started", "amiss", "repair"]
    assert events[-1]["why"] == "node-1 is missing"
    assert events[-1]["outcome"].startswith("repaired")
    assert events[-1]["nodes"] == ["node-1"]
    assert [node["state"] for node in cluster.json("status")["nodes"]] == ["ready"] * 2
    log = (cluster.state / "logs" / "watch.log").read_text()
    assert "repair: node-1 is missing: repaired" in log
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130, said
    assert "ended: interrupted" in (cluster.state / "logs" / "watch.log").read_text()


def test_down_ends_it_and_nothing_comes_back(watched):
    cluster, process, told = watched
    assert cluster.json("down", "-y")["survivors"] == []
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert json.loads(told.read_text().splitlines()[-1])["event"] == "gone"
    assert labelled(cluster.name) == []
    assert not cluster.state.exists()

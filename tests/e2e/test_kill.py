"""Killed anywhere while nodes are made: the next `up` converges, `down` leaves nothing."""

import json
import random
import signal
import subprocess
import time

import pytest

from support.cluster import labelled
from support.crash import Crashes

pytestmark = [pytest.mark.e2e, pytest.mark.docker]


# One of them in each run of all tests; the others are for `make test-nightly PARTS=faults`.
SEEDS = [0, *(pytest.param(seed, marks=pytest.mark.faults) for seed in (1, 2, 3, 4))]


@pytest.mark.parametrize("seed", SEEDS)
def test_kills_leave_neither_duplicates_nor_orphans(bare, seed):
    crashes = Crashes(bare, random.Random(seed))
    crashes.episode(kills=2)
    assert not crashes.tally["unreadable"]


@pytest.mark.long  # killed often before something is left
def test_down_after_a_kill_leaves_nothing_and_lists_what_it_removed(bare):
    crashes = Crashes(bare, random.Random(7))
    while not crashes.kill("up") or not labelled(bare.name):
        pass
    removal = bare.json("down", "-y")
    assert removal["survivors"] == []
    assert removal["removed"]
    assert labelled(bare.name) == []
    assert not (bare.root / ".gpubed" / bare.name).exists()


def test_a_second_up_exits_5_and_names_the_first(bare):
    first = bare.start("up", bare.name, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        lock = bare.root / ".gpubed" / bare.name / "lock"
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not (lock.exists() and lock.read_text()):
            time.sleep(0.05)
        refused = bare.call("up", rc=5)
        assert f"pid {first.pid}" in refused.stderr
    finally:
        assert first.wait(120) == 0


def test_ctrl_c_ends_cleanly_with_130(bare):
    process = bare.start("up", bare.name, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in said
    bare.call("up")
    assert [node["state"] for node in bare.json("status")["nodes"]] == ["ready"] * 2


def test_a_node_removed_behind_our_back_is_found_and_made_again(bare):
    bare.call("up")
    ids = {node["name"]: node["id"] for node in bare.json("status")["nodes"]}
    subprocess.run(["docker", "rm", "-f", ids["node-1"]], check=True, capture_output=True)
    [told] = bare.json("plan")["damage"]
    assert told == "node-1 is missing: it is made again"
    status = bare.json("up")
    after = {node["name"]: node["id"] for node in status["nodes"]}
    assert after["node-0"] == ids["node-0"]
    assert after["node-1"] != ids["node-1"]


def test_the_shaping_changes_in_place(bare):
    bare.call("up")
    before = [node["id"] for node in bare.json("status")["nodes"]]
    bare.edit(lambda spec: spec["networks"]["experiment"].update(rate="50 Mbit/s"))
    ops = {change["op"] for change in bare.json("plan")["changes"]}
    assert ops == {"update"}
    bare.call("up")
    assert [node["id"] for node in bare.json("status")["nodes"]] == before
    shown = bare.node("node-0", "cat /etc/gpubed/link")
    assert "50000000" in shown


def test_events_are_one_json_object_per_line(bare, tmp_path):
    events = tmp_path / "events.jsonl"
    bare.call("up", "--events", str(events))
    parsed = [json.loads(line) for line in events.read_text().splitlines()]
    assert {"at", "what"} <= set(parsed[0])
    created = [
        e["name"]
        for e in parsed
        if e["what"] == "resource" and e["status"] == "done" and e["op"] == "create"
    ]
    assert {"identity", "control", "node-0", "node-1", "configuration"} <= set(created)


@pytest.mark.long
def test_a_cluster_needs_no_experiment_network(bare):
    bare.edit(lambda spec: spec["networks"].pop("experiment"))
    status = bare.json("up")
    assert [node["experiment_address"] for node in status["nodes"]] == [None, None]
    assert bare.json("plan")["changes"] == []


def test_files_that_a_killed_run_removed_or_wrote_are_written_again(bare):
    bare.call("up")
    before = bare.json("status")["nodes"]
    for name in ("ssh_config", "known_hosts"):
        (bare.state / name).unlink()
    allocation = bare.state / "allocation.json"
    # As of a run that was killed after it had made a third node's files, not its state.
    allocation.write_text(allocation.read_text().replace("node-1", "node-2"))
    hosts = bare.root / "inventories" / bare.name / "hosts.yml"
    hosts.write_text(hosts.read_text().replace("node-1", "node-2"))
    assert [change["op"] for change in bare.json("plan")["changes"]] == ["update"]
    assert bare.json("up")["nodes"] == before
    assert "node-2" not in hosts.read_text()
    assert bare.node("node-0", "hostname") == "node-0\n"
    assert bare.json("plan")["changes"] == []

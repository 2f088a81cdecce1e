"""Killed anywhere while nodes are made: the next `up` converges, `down` leaves nothing."""

import json
import random
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

"""`cluster.yml` that is edited while `up` makes the nodes, as a real run sees it."""

import json
import subprocess
import time

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.docker]


def test_what_is_edited_while_nodes_are_made_is_for_the_next_up(bare):
    events = bare.root / "events.jsonl"
    words = ("up", bare.name, "-y", "--events", str(events))
    running = bare.start(*words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for_a_node(events, running)
    bare.edit(lambda spec: spec["nodes"][0].update(count=1))
    _, said = running.communicate(timeout=300)
    assert running.returncode == 0, said
    assert [node["name"] for node in bare.json("status")["nodes"]] == ["node-0", "node-1"]
    assert [node["name"] for node in bare.json("up", "-y")["nodes"]] == ["node-0"]
    assert bare.json("plan")["changes"] == []


def wait_for_a_node(events, running):
    """Return once the first node is being made."""
    while running.poll() is None:
        lines = events.read_text().splitlines() if events.exists() else []
        said = [json.loads(line) for line in lines if line.endswith("}")]
        if any("Node" in str(event.get("urn", "")) for event in said):
            return
        time.sleep(0.02)
    raise AssertionError("no node was begun")

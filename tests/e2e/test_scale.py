"""Growing and shrinking touches only what it must."""

import json
import socket
import subprocess
import time

import pytest

from support.cluster import labelled

pytestmark = [pytest.mark.e2e, pytest.mark.docker]


def containers(cluster):
    """Return id and start time of each node's container."""
    found = {}
    for node in cluster.json("status")["nodes"]:
        shown = subprocess.run(
            ["docker", "inspect", node["id"]], capture_output=True, text=True, check=True
        )
        found[node["name"]] = (node["id"], json.loads(shown.stdout)[0]["State"]["StartedAt"])
    return found


def hostfile(cluster):
    return [
        line.split()[0] for line in cluster.node("head", "cat /etc/gpubed/hostfile").splitlines()
    ]


def set_count(cluster, count):
    cluster.edit(lambda spec: spec["nodes"][0].update(count=count))


def test_one_node_more_touches_no_other(cluster):
    before = containers(cluster)
    set_count(cluster, 4)
    plan = cluster.json("plan")
    changes = {(c["op"], c["urn"].split("::")[-1]) for c in plan["changes"]}
    assert changes == {("create", "node-3"), ("update", "configuration")}
    there = {role["name"] for role in plan["roles"] if "node-0" in role["nodes"]}
    assert there == {"base", "ssh_mesh", "firewall", "jupyterlab"}, "what names all nodes"
    assert all("node-3" in role["nodes"] for role in plan["roles"])
    status = cluster.json("up")
    assert status["roles"] == plan["roles"]
    after = containers(cluster)
    assert set(after) == {*before, "node-3"}
    assert before.items() <= after.items(), "the others were neither replaced nor restarted"
    assert hostfile(cluster) == ["node-0", "node-1", "node-2", "node-3"]
    assert status["verification"]["failed"] == 0
    assert {c["node"] for c in status["verification"]["checks"] if c["id"] == "ssh.mesh"} == set(
        after
    )


@pytest.mark.long
def test_a_kill_while_ansible_runs_leaves_nothing_that_the_next_up_cannot_mend(cluster):
    """Killed when JupyterLab's new port is written and the service not yet restarted."""
    before = containers(cluster)
    set_count(cluster, 2)
    cluster.edit(lambda spec: spec["services"]["jupyterlab"].update(port=9998))
    events = cluster.root / "events.jsonl"
    process = cluster.start(
        "up",
        cluster.name,
        "-y",
        "--events",
        str(events),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    written = {"what": "task", "task": "Describe the kernel"}
    try:
        _wait_for(events, lambda e: written.items() <= e.items(), process)
    finally:
        process.kill()
        process.wait()
    assert cluster.json("status", rc=1)["state"] == "interrupted"
    assert "gpubed up" in cluster.call("run", "digits", rc=1).stderr
    assert "gpubed up" in cluster.call("open", "--print", rc=1).stderr
    status = cluster.json("up", "-y")
    assert ":9998/" in status["services"][0]["url"]
    assert status["verification"]["failed"] == 0
    assert [node["state"] for node in status["nodes"]] == ["ready"] * 2
    after = containers(cluster)
    assert after == {name: before[name] for name in ("node-0", "node-1")}
    assert hostfile(cluster) == ["node-0", "node-1"]
    made = [name for name in labelled(cluster.name) if name.startswith("container")]
    assert len(made) == 2, "two were removed cleanly"
    assert cluster.json("plan")["changes"] == []


def _wait_for(events, wanted, process):
    while process.poll() is None:
        if events.exists():
            lines = events.read_text().splitlines()
            if any(wanted(json.loads(line)) for line in lines if line.endswith("}")):
                return
        time.sleep(0.1)
    raise AssertionError("the event never came")


def test_results_and_jobs_follow_the_new_size(cluster):
    assert cluster.json("run", "digits")["world_size"] == cluster.spec["nodes"][0]["count"]


@pytest.mark.long
def test_a_port_that_is_taken_is_named(cluster):
    port = cluster.spec["services"]["jupyterlab"]["port"]
    taken = 8890
    cluster.node(
        "head", f"nohup timeout 120 python3 -m http.server {taken} >/dev/null 2>&1 </dev/null &"
    )
    cluster.edit(lambda spec: spec["services"]["jupyterlab"].update(port=taken))
    said = cluster.call("up", rc=1).stderr
    assert f"Port {taken} of node-0 is taken by" in said
    assert "does not answer" not in said, "the role that moves it has yet to run"
    cluster.edit(lambda spec: spec["services"]["jupyterlab"].update(port=port))


@pytest.mark.long
def test_jupyterlab_can_be_switched_off(cluster):
    left = cluster.json("status", rc=1)  # by the run before, which failed
    assert left["state"] == "interrupted"
    address = left["nodes"][0]["control_address"]
    port = cluster.spec["services"]["jupyterlab"]["port"]
    with socket.create_connection((address, port), timeout=5):
        pass
    cluster.edit(lambda spec: spec.update(services={"jupyterlab": None}))
    status = cluster.json("up")
    assert status["services"] == []
    assert status["verification"]["failed"] == 0
    with pytest.raises(OSError, match=r"refused|timed out"):
        socket.create_connection((address, port), timeout=5)
    refused = cluster.call("open", "--print", rc=1)
    assert "services.jupyterlab" in refused.stderr
    assert cluster.json("plan")["changes"] == []

"""Nodes that are not well are left out, and jobs on the others do not notice."""

import subprocess

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.docker]

HOSTS = "printf 'node-0 slots=1\\nnode-1 slots=1\\n' > /tmp/hosts"
# Reduces over its ranks until it is told to end; light, since others are measured beside it.
JOB = """
import pathlib, time, torch
import horovod.torch as hvd
hvd.init()
steps = 0
while not hvd.broadcast_object(pathlib.Path("/shared/stop").exists(), name="stop"):
    assert hvd.allreduce(torch.ones(1000), op=hvd.Sum, name="sum")[0] == hvd.size()
    steps += 1
    time.sleep(0.2)
if hvd.rank() == 0:
    print("steps", steps, "ranks", hvd.size())
"""


def states(cluster, *words, rc=0):
    return {node["name"]: node["state"] for node in cluster.json("health", *words, rc=rc)["nodes"]}


def set_count(cluster, count):
    cluster.edit(lambda spec: spec["nodes"][0].update(count=count))


def test_a_quarantined_node_is_left_out_and_fails_verify_until_it_is_requalified(cluster):
    found = states(cluster, "--quarantine", "node-2", "--reason", "fan is loud")
    assert found == {"node-0": "well", "node-1": "well", "node-2": "quarantined"}
    assert set(states(cluster, rc=1)) == {"node-0", "node-1", "node-2"}
    shown = {node["name"]: node for node in cluster.json("status", rc=1)["nodes"]}["node-2"]
    assert (shown["state"], shown["reason"]) == ("quarantined", "fan is loud")
    said = cluster.call("status", rc=1)
    assert f"gpubed health {cluster.name} --requalify node-2" in said.stdout
    result = cluster.json("run", "digits")
    assert (result["status"], result["world_size"]) == ("ok", 2)
    assert result["left_out"] == {"node-2": "fan is loud"}
    failed = [c for c in cluster.json("verify", rc=1)["verification"]["checks"]
              if c["result"] == "fail"]  # fmt: skip
    assert [(c["id"], c["node"], c["reason"]) for c in failed] == [
        ("health.node", "node-2", "fan is loud")
    ]
    assert states(cluster, "--requalify", "node-2")["node-2"] == "well"


def test_a_node_that_is_still_broken_is_not_requalified(cluster):
    cluster.node("node-1", "sudo mv /etc/gpubed/health.json /etc/gpubed/kept.json"
                 " && sed s#/shared#/gone# /etc/gpubed/kept.json"
                 " | sudo tee /etc/gpubed/health.json")  # fmt: skip
    states(cluster, "--quarantine", "node-1", "--reason", "storage", rc=0)
    assert states(cluster, "--requalify", "node-1", rc=1)["node-1"] == "quarantined"
    cluster.node("node-1", "sudo mv /etc/gpubed/kept.json /etc/gpubed/health.json")
    assert states(cluster, "--requalify", "node-1")["node-1"] == "well"


def test_no_job_starts_from_a_head_that_is_not_well(cluster):
    states(cluster, "--quarantine", "node-0", "--reason", "disk")
    refused = cluster.call("run", "digits", rc=1)
    assert "the head node-0 is not well: disk" in refused.stderr
    states(cluster, "--requalify", "node-0")


@pytest.mark.services  # grows and shrinks the cluster: too long for `make test-all`
def test_a_job_does_not_notice_what_happens_to_other_nodes(cluster):
    cluster.node("head", f"{HOSTS}; rm -f /shared/stop; cat > /tmp/job.py", text=JOB)
    cluster.node("node-1", "cat > /tmp/job.py", text=JOB)
    config = str(cluster.state / "ssh_config")
    command = "gpubed-horovodrun --hostfile /tmp/hosts -np 2 -- python /tmp/job.py"
    job = subprocess.Popen(
        ["ssh", "-F", config, "head", command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        states(cluster, "--quarantine", "node-2", "--reason", "trial")
        assert states(cluster, "--requalify", "node-2")["node-2"] == "well"
        set_count(cluster, 4)
        assert len(cluster.json("up")["nodes"]) == 4
        set_count(cluster, 3)
        cluster.call("up", "-y")
        assert job.poll() is None, job.communicate()[0]
    finally:
        cluster.node("head", "touch /shared/stop")
        said, _ = job.communicate(timeout=120)
    assert job.returncode == 0, said
    steps = int(said.split("steps ", 1)[1].split()[0])
    assert steps > 50, "it went on all the time"
    assert "ranks 2" in said

"""`up` interrupted while Ansible works on the nodes: over in seconds, and the next one goes on."""

import json
import os
import signal
import subprocess
import time

import pytest

from gpubed import runlock

pytestmark = [pytest.mark.faults, pytest.mark.e2e, pytest.mark.docker]


def works_on_nodes(events):
    return events.exists() and '"what": "host"' in events.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_it_ends_within_seconds_and_leaves_nobody(cluster, tmp_path, number):
    port = 8900 + number
    cluster.edit(lambda spec: spec["services"]["jupyterlab"].update(port=port))
    events = tmp_path / "events.jsonl"
    process = cluster.start(
        *("up", cluster.name, "--events", str(events)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    while process.poll() is None and not works_on_nodes(events):
        time.sleep(0.1)
    os.kill(process.pid, number)  # alone: its children learn of it from nobody else
    began = time.monotonic()
    _, said = process.communicate(timeout=60)
    assert time.monotonic() - began < 10
    assert process.returncode == 128 + number
    assert "run the same command again" in said
    assert "Traceback" not in said
    assert runlock.workers(cluster.state) == []


def test_the_next_up_converges(cluster):
    status = cluster.json("up")
    assert f":{8900 + signal.SIGTERM}/" in status["services"][0]["url"]
    assert status["verification"]["failed"] == 0
    assert cluster.json("plan")["changes"] == []
    assert json.loads(cluster.call("audit", "--json").stdout)["interrupted"] == []

"""A whole cluster, and root on a worker who has a word in what Ansible prints."""

import json
import time

import pytest

from support.hostile import FLOOD, FORGERY, sitecustomize

pytestmark = [pytest.mark.services, pytest.mark.e2e, pytest.mark.docker]
# Debian has a sitecustomize of its own.
PLACE = "/usr/lib/python3/dist-packages/gpubed_hostile"


@pytest.fixture(params=[FORGERY, FLOOD], ids=["forgery", "flood"])
def hostile(cluster, request):
    """Node node-1 says something whenever Python starts there."""
    cluster.node("node-1", f"sudo tee {PLACE}.py >/dev/null", text=sitecustomize(request.param))
    cluster.node("node-1", f"echo import gpubed_hostile | sudo tee {PLACE}.pth >/dev/null")
    yield cluster
    cluster.node("node-1", f"sudo rm {PLACE}.py {PLACE}.pth")


def test_roles_are_applied_and_told_as_they_are(hostile):
    victim, started = hostile.state / "x-partial.json", time.monotonic()
    victim.write_text("{}")
    done = hostile.call("configure", "--tags", "base", "--json")
    assert time.monotonic() - started < 300
    nodes = [group["count"] for group in hostile.spec["nodes"]]
    assert len(json.loads(done.stdout)["changed"]) == sum(nodes)
    assert "sudo sh" not in done.stderr
    victim.unlink()
    logs = sorted(hostile.state.glob("logs/*-ansible.log"))
    said = logs[-1].read_text()
    assert "spam" in said or "eyJ" in said, "the node had a word in it"
    assert len(said) < 20_000_000

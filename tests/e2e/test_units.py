"""Services that stopped on a whole cluster: seen by `status` and `plan`, repaired by `up`."""

import pytest

pytestmark = [pytest.mark.services, pytest.mark.e2e, pytest.mark.docker]

SERVICES = {"slurm": {}, "docker": {}, "monitoring": {}}


@pytest.fixture(scope="module")
def serving(cluster):
    had = cluster.spec["services"].copy()
    cluster.edit(lambda spec: spec["services"].update(SERVICES))
    cluster.call("up", "-y")
    yield cluster
    cluster.edit(lambda spec: spec.update(services=had))
    cluster.call("up", "-y")


@pytest.mark.parametrize(
    ("node", "unit", "role"),
    [
        ("node-0", "slurmctld", "slurm"),
        ("node-0", "slurmdbd", "slurm"),
        ("node-1", "slurmd", "slurm"),
        ("node-1", "munge", "slurm"),
        ("node-2", "docker", "docker"),
        ("node-0", "prometheus", "monitoring"),
    ],
)
def test_a_unit_that_stopped_is_seen_and_started(serving, node, unit, role):
    serving.node(node, f"sudo systemctl stop '{unit}.*'")  # with the socket that would start it
    why = f"{unit}.service on {node} is "
    assert why in serving.call("status", rc=1).stderr
    planned = serving.json("plan")
    assert any(why in line for line in planned["damage"])
    assert role in {due["name"] for due in planned["roles"]}
    serving.call("up")
    assert serving.json("status")["stopped"] == []
    assert serving.node(node, f"systemctl is-active {unit}").strip() == "active"

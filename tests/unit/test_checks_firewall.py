"""Who knocks, and where; sessions are STAND-INs that say which ports answer."""

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpubed.checks import firewall
from gpubed.checks.context import Context
from gpubed.core.paths import Project
from gpubed.nodes.allocation import Cluster, Hop
from support.samples import sample_allocation, sample_plan

CANARY = 40001


class Node:
    def __init__(self, node, answering=(22,)):
        self.node, self.answering, self.knocks = node, set(answering), []

    def run(self, command, *_, **__):
        if command == firewall._LISTENING:
            return SimpleNamespace(stdout="0.0.0.0:22\n0.0.0.0:9100\n127.0.0.1:631\n", exit_code=0)
        return SimpleNamespace(stdout=str(CANARY), exit_code=0)

    def answers(self, port, timeout):
        self.knocks.append(port)
        return port in self.answering


LAB = Project(Path("/nowhere")).cluster("lab")  # nothing of it is there


@pytest.fixture
def cloud(monkeypatch):
    """A function that verifies three nodes behind the first's address outside."""

    def verify(*answering, members=True):
        plan = sample_plan()
        granted = sample_allocation(plan)
        keys = granted.head.host_keys if members else ("ssh-ed25519 BASTION",)
        hop = Hop(address="203.0.113.7", user="gpubed", host_keys=keys)
        nodes = tuple(node.model_copy(update={"via": (hop,)}) for node in granted.nodes)
        granted = granted.model_copy(update={"nodes": nodes})
        outside = []

        def come(node, *_):
            outside.append(Node(node, answering))
            return outside[-1]

        monkeypatch.setattr(firewall, "SSH", come)
        inside = {node.name: Node(node, answering) for node in nodes}
        found = list(firewall.closed_from_outside(Context(Cluster(LAB, plan, granted), inside)))
        return {check.node: check for check in found}, outside, inside

    return verify


def test_the_door_to_a_cloud_is_knocked_at_from_outside(cloud):
    found, outside, inside = cloud(22)
    assert found["node-0"].result == "pass"
    assert [one.node.control_address for one in outside] == ["203.0.113.7"]
    assert sorted(outside[0].knocks) == [9100, CANARY]
    assert not any(node.knocks for node in inside.values()), "the door itself may reach all"
    assert {found[name].result for name in ("node-1", "node-2")} == {"skip"}
    assert "no address outside" in found["node-1"].reason


@pytest.mark.parametrize("port", [9100, CANARY])
def test_what_answers_there_is_a_failure(cloud, port):
    found, _, _ = cloud(22, port)
    assert found["node-0"].result == "fail"
    assert str(port) in found["node-0"].reason


@pytest.mark.process
@pytest.mark.parametrize(
    ("owners", "told"), [("tcp:80 udp:9100 tcp:22", "[::]:9100"), (None, None)]
)
def test_ports_of_a_hosts_owner_are_not_knocked_at(tmp_path, owners, told):
    listening = ["0.0.0.0:22", "*:80", "0.0.0.0:80", "[::]:9100"]
    ss = tmp_path / "ss"  # STAND-IN
    ss.write_text("".join(f"echo 'LISTEN 0 5 {one} *:*'\n" for one in listening))
    ss.chmod(0o755)
    ports = tmp_path / "owner.ports"
    if owners:
        ports.write_text(f"{owners}\n")
    command = firewall._LISTENING.replace("/etc/gpubed/owner.ports", str(ports))
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-ec", command], capture_output=True, text=True, check=True, env={"PATH": path}
    )
    assert done.stdout.split() == ([told] if told else listening)

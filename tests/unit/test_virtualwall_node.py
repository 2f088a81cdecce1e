"""Which of a node's addresses is its control address, behind a bastion and without."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from gpubed.backends.virtualwall import node
from gpubed.backends.virtualwall.node import Given
from gpubed.nodes.allocation import Hop
from gpubed.nodes.ssh import Unreachable

GATE = Hop(address="gate.example", user="alice", host_keys=("ssh-ed25519 A",))
GIVEN = Given(sliver="s", host="n1.wall.example", user="alice", ipv4="10.2.33.7")
TESTBED = SimpleNamespace(host_keys="first_use")


@pytest.fixture
def met(monkeypatch):
    """A function that says where a node is met, where these addresses answer."""

    def meet(*answering, via=(GATE,)):
        def presented(there, *_):
            if there.control_address not in answering:
                raise Unreachable(f"{there.control_address} does not answer")
            return "ssh-ed25519 B"

        monkeypatch.setattr(node.logins, "way", lambda *_: via)
        monkeypatch.setattr(node.logins, "load", lambda _: None)
        monkeypatch.setattr(node.host_keys, "presented", presented)
        monkeypatch.setattr(node, "_SSH_S", 0.0)
        monkeypatch.setattr(node, "_LOOK_S", 0.0)
        wanted = SimpleNamespace(name="node-0", testbed=TESTBED)
        result = node.NodeDriver(None)._met(wanted, GIVEN)
        return result["control_address"]

    return meet


def test_a_node_that_answers_nowhere_is_named(met):
    with pytest.raises(Unreachable, match=r"node-0 does not answer SSH on 10.2.33.7, n1"):
        met()


def test_a_name_that_is_not_known_yet_says_what_helps(met, monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(Unreachable, match="stands for no address: Name or") as failed:
        met(via=())
    assert failed.value.hint.endswith("gpubed up CLUSTER")

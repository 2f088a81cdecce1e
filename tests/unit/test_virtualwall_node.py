"""Which of a node's addresses is its control address, behind a bastion and without."""

from __future__ import annotations

import socket
from types import SimpleNamespace

import pytest

from gpubed.backends.virtualwall import bastion, node
from gpubed.backends.virtualwall.node import Given
from gpubed.nodes.allocation import Hop
from gpubed.nodes.ssh import Unreachable

GATE = Hop(address="gate.example", user="alice", host_keys=("ssh-ed25519 A",))
GIVEN = Given(sliver="s", host="n1.wall.example", user="alice", ipv4="10.2.33.7")


@pytest.fixture
def door(monkeypatch):
    """A function that returns the address that is chosen, where these answer."""

    def choose(*answering, given=GIVEN):
        def presented(there, *_):
            if there.control_address not in answering:
                raise Unreachable(f"{there.control_address} does not answer")
            return "ssh-ed25519 B"

        monkeypatch.setattr(bastion, "way", lambda *_: (GATE,))
        monkeypatch.setattr(node.logins, "load", lambda _: None)
        monkeypatch.setattr(node.host_keys, "presented", presented)
        monkeypatch.setattr(node, "_SSH_S", 0.0)
        monkeypatch.setattr(node, "_LOOK_S", 0.0)
        return node._door(SimpleNamespace(name="node-0", testbed=None), given, None).address

    return choose


def test_the_private_address_is_preferred(door):
    assert door("10.2.33.7", "n1.wall.example") == "10.2.33.7"


def test_the_public_one_is_taken_where_the_bastion_lets_through_to_it_alone(door):
    assert door("n1.wall.example") == "n1.wall.example"


def test_a_node_that_answers_nowhere_is_named(door):
    with pytest.raises(Unreachable, match="does not answer"):
        door()


def test_a_single_address_is_not_tried_beforehand(door):
    assert door(given=GIVEN.model_copy(update={"ipv4": ""})) == "n1.wall.example"


def test_a_name_that_nobody_knows_yet_says_what_helps(monkeypatch):
    def unknown(*_, **__):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(bastion, "way", lambda *_: ())
    monkeypatch.setattr(node.logins, "load", lambda _: None)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(Unreachable, match="stands for no address: Name or") as failed:
        node._door(SimpleNamespace(name="node-0", testbed=None), GIVEN, None)
    assert failed.value.hint.endswith("gpubed up CLUSTER")

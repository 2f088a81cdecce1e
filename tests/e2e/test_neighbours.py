"""Neighbours on the nodes' networks: who claims a node's address is not taken for it, and who
holds connections open keeps nobody out."""

import os
import socket
import subprocess
import time
import uuid
from contextlib import ExitStack

import pytest

from e2e.conftest import bare_cluster
from support import neighbour
from support.impostor import Granted

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root"),
]
CLOSED = 9797
LISTEN = (
    f"import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('', {CLOSED}))\n"
    "while True: print(s.recv(99).decode(), flush=True)"
)


@pytest.fixture(scope="module")
def guarded(docker, tmp_path_factory):
    """Two nodes behind their firewall; node-0 listens on a port that nobody opened."""
    root = tmp_path_factory.mktemp("project")
    # sshd has a process for each connection.
    with bare_cluster(root, memory="6 GiB") as cluster:
        cluster.call("up")
        book = root / "guard.yml"
        book.write_text("- {hosts: all, become: true, roles: [base, ssh_mesh, firewall]}\n")
        cluster.playbook(path=book)
        granted = Granted(cluster)
        granted.inside("node-0", f'systemd-run --quiet --unit=canary python3 -c "{LISTEN}"')
        yield granted


def is_heard(granted, place):
    """Let a neighbour that claims node-1's address speak to node-0; say whether that was heard."""
    target, claimed = granted.allocation.nodes
    control, experiment = target.control_address, target.experiment_address
    who, asked = {
        "control address": (claimed.control_address, control),
        # A node answers for all of its addresses on each of its networks.
        "experiment address": (claimed.experiment_address, control),
        "experiment address to such a one": (claimed.experiment_address, experiment),
    }[place]
    words = uuid.uuid4().hex
    with neighbour.on(
        neighbour.bridge_of(control), f"{who}/32", way=(asked, "dev", "eth0")
    ) as somebody:
        somebody.say(asked, CLOSED, words)
        time.sleep(1)
    return words in granted.inside("node-0", "journalctl --no-pager --output=cat --unit=canary")


PLACES = ["control address", "experiment address", "experiment address to such a one"]


@pytest.mark.parametrize("place", PLACES)
def test_who_claims_a_nodes_address_is_not_taken_for_it(guarded, place):
    assert not is_heard(guarded, place)


@pytest.mark.parametrize("place", PLACES)
def test_without_the_firewall_it_would_be(guarded, place):
    guarded.inside("node-0", "nft delete table inet gpubed")
    try:
        assert is_heard(guarded, place)
    finally:
        guarded.inside("node-0", "systemctl restart gpubed-firewall")


def test_nodes_hear_each_other(guarded):
    there, words = guarded.allocation.nodes[0].experiment_address, uuid.uuid4().hex
    guarded.inside("node-1", f"bash -c 'echo {words} > /dev/udp/{there}/{CLOSED}'")
    assert words in guarded.inside("node-0", "journalctl --no-pager --output=cat --unit=canary")


def test_who_holds_connections_open_keeps_nobody_out(guarded):
    """Not even those who come from the same address."""
    head = guarded.allocation.nodes[0]
    with ExitStack() as held:
        for _ in range(400):
            there = (head.control_address, head.port)
            held.enter_context(socket.create_connection(there, timeout=10))
        took = []
        for _ in range(3):  # the first one waits while the others are still being greeted
            started = time.monotonic()
            guarded.cluster.node("node-0", "true")
            took.append(time.monotonic() - started)
        assert min(took) < 2


def test_a_node_forwards_to_no_other_service(guarded):
    """But through it one reaches the SSH of the next, which is the only way to some nodes."""
    head, worker = guarded.allocation.nodes
    config = str(guarded.paths.ssh_config)
    for place, allowed in (
        (f"{worker.control_address}:{worker.port}", True),
        ("127.0.0.1:22", True),
        (f"{worker.experiment_address}:{CLOSED}", False),
    ):
        done = subprocess.run(
            ["ssh", "-F", config, "-W", place, head.name],
            input="",
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert ("administratively prohibited" in done.stderr) is not allowed, (place, done)


def test_sshd_offers_current_algorithms_only(guarded):
    told = guarded.inside("node-0", "sshd -T").splitlines()
    offered = {line.split()[0]: line.split()[1].split(",") for line in told}
    assert all("curve25519" in name or "25519" in name for name in offered["kexalgorithms"])
    assert all(name.endswith("-etm@openssh.com") for name in offered["macs"])
    assert not [name for name in offered["ciphers"] if "cbc" in name]

"""From outside only SSH answers, and the scan can find an open port."""

import os
import shutil
import subprocess
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.docker]
# Well-known services, ours, and the range that rendezvous and listeners take.
PORTS = [
    *range(1, 1025),
    2049,
    5432,
    6006,
    8080,
    8443,
    8787,
    8888,
    9100,
    9400,
    9999,
    *range(32768, 32800),
]
SCAN = """
import socket, sys
from concurrent.futures import ThreadPoolExecutor
def knock(port):
    try:
        socket.create_connection((sys.argv[1], port), timeout=1).close()
    except OSError:
        return None
    return port
with ThreadPoolExecutor(256) as pool:
    print(*[p for p in pool.map(knock, map(int, sys.argv[2].split(","))) if p])
"""


@contextmanager
def outsider(bridge):
    """A machine of its own: a network namespace, routed to the nodes through this host."""
    name, veth = f"gpubed-{uuid.uuid4().hex[:6]}", f"gb{uuid.uuid4().hex[:6]}"

    def ip(*words):
        subprocess.run(["ip", *words], check=True)

    ip("netns", "add", name)
    try:
        ip("link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("addr", "add", "203.0.113.1/30", "dev", veth)
        ip("link", "set", veth, "up")
        ip("-n", name, "addr", "add", "203.0.113.2/30", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "route", "add", "default", "via", "203.0.113.1")
        # Docker isolates its bridges from other interfaces; open a path for this one.
        rule = ["-i", veth, "-o", bridge, "-j", "ACCEPT"]
        subprocess.run(["iptables", "-I", "DOCKER-USER", *rule], check=True)
        subprocess.run(["sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)
        try:
            yield name
        finally:
            subprocess.run(["iptables", "-D", "DOCKER-USER", *rule], check=True)
    finally:
        subprocess.run(["ip", "link", "del", veth], check=False)
        ip("netns", "del", name)


def scan(namespace, address, ports):
    command = [
        "ip",
        "netns",
        "exec",
        namespace,
        "python3",
        "-c",
        SCAN,
        address,
        ",".join(map(str, ports)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {int(port) for port in done.stdout.split()}


@pytest.fixture
def nodes(cluster):
    if os.geteuid() != 0 or shutil.which("iptables") is None:
        pytest.skip("network namespaces need root and iptables")
    return {node["name"]: node["control_address"] for node in cluster.json("status")["nodes"]}


def bridge_of(address):
    route = subprocess.run(
        ["ip", "route", "get", address], capture_output=True, text=True, check=True
    )
    return route.stdout.split(" dev ")[1].split()[0]


def test_only_ssh_answers_from_outside(cluster, nodes):
    with outsider(bridge_of(nodes["node-0"])) as namespace, ThreadPoolExecutor(3) as pool:
        found = dict(
            zip(nodes, pool.map(lambda a: scan(namespace, a, PORTS), nodes.values()), strict=True)
        )
    assert found == {"node-0": {22}, "node-1": {22}, "node-2": {22}}


def test_the_scan_finds_a_port_when_the_firewall_is_off(cluster, nodes):
    planted = 7777
    listen = (
        f"nohup timeout 300 python3 -m http.server {planted} >/dev/null 2>&1 </dev/null & sleep 1"
    )
    cluster.node("node-1", listen)
    with outsider(bridge_of(nodes["node-1"])) as namespace:
        assert scan(namespace, nodes["node-1"], [22, planted]) == {22}
        cluster.node("node-1", "sudo nft delete table inet gpubed")
        try:
            assert scan(namespace, nodes["node-1"], [22, planted]) == {22, planted}
            checks = cluster.json("verify", rc=1)["verification"]["checks"]
            closed = {c["node"]: c["result"] for c in checks if c["id"] == "firewall.closed"}
            assert closed == {"node-0": "pass", "node-1": "fail", "node-2": "pass"}
        finally:
            cluster.node("node-1", "sudo systemctl restart gpubed-firewall")
        assert scan(namespace, nodes["node-1"], [22, planted]) == {22}

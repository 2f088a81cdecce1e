"""From outside only SSH answers, and the scan can find an open port."""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.neighbour import bridge_of
from support.outsider import outsider, scan

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


@pytest.fixture
def nodes(cluster):
    if os.geteuid() != 0 or shutil.which("iptables") is None:
        pytest.skip("network namespaces need root and iptables")
    return {node["name"]: node["control_address"] for node in cluster.json("status")["nodes"]}


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

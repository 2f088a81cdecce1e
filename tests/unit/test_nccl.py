"""NCCL's settings follow from addresses and sysfs; what NCCL says is judged right.

The sysfs trees have the layout of the kernel's drivers (mlx5 and rdma_rxe), with
made-up names; what NCCL says was recorded from 2.30.7 on a node without a GPU.
"""

import json

import pytest

from gpubed.checks import cuda
from gpubed.configuration import roles
from gpubed.core.paths import assets
from gpubed.recipes import recipe as recipes
from support import by_path
from support.samples import sample_allocation, sample_plan

ADDRESSES = [
    {"ifname": "lo", "addr_info": [{"local": "127.0.0.1"}]},
    {"ifname": "ens3", "addr_info": [{"local": "192.0.2.7"}]},
    {"ifname": "enp1s0f0np0", "addr_info": [{"local": "10.0.0.7"}]},
    {"ifname": "bare"},
]
OWN = (["enp1s0f0np0"], ["enp1s0f0np0"])


@pytest.fixture(scope="module")
def derive():
    return by_path.load(assets() / "roles/nccl/files/derive.py", "nccl_derive")


@pytest.fixture
def sysfs(tmp_path):
    """A function that adds a port of an adapter to a tree like /sys."""

    def add(name, port="1", state="4: ACTIVE", layer="Ethernet", netdev=None, gbps=400):
        folder = tmp_path / "class/infiniband" / name / "ports" / port
        (folder / "gid_attrs/ndevs").mkdir(parents=True)
        (folder / "state").write_text(f"{state}\n")
        (folder / "link_layer").write_text(f"{layer}\n")
        (folder / "rate").write_text(f"{gbps} Gb/sec (4X NDR)\n")
        if netdev:
            (folder / "gid_attrs/ndevs/0").write_text(f"{netdev}\n")
        return tmp_path

    return add


def test_the_interface_is_found_by_its_network(derive):
    assert derive.interfaces(ADDRESSES, "10.0.0.0/20") == ["enp1s0f0np0"]
    assert derive.interfaces(ADDRESSES, "172.16.0.0/12") == []
    assert derive.interfaces(ADDRESSES, "192.0.2.7/32") == ["ens3"]


def test_a_node_without_adapters_has_no_ports(derive, tmp_path):
    assert derive.adapters(tmp_path, *OWN) == []


def test_of_ethernet_adapters_only_those_of_the_network_count(derive, sysfs):
    sysfs("mlx5_0", netdev="enp1s0f0np0")
    sysfs("mlx5_1", netdev="ens3")
    tree = sysfs("rxe0")
    assert derive.adapters(tree, *OWN) == ["mlx5_0:1"]


@pytest.mark.parametrize(
    ("ports", "dscp", "expected"),
    [
        ([], None, {"NCCL_IB_DISABLE": "1"}),
        (["mlx5_0:1", "mlx5_1:1"], None, {"NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1"}),
        (["mlx5_0:1"], 26, {"NCCL_IB_HCA": "=mlx5_0:1", "NCCL_NET": "IB", "NCCL_IB_TC": "106"}),
        (["mlx5_0:1"], 0, {"NCCL_IB_HCA": "=mlx5_0:1", "NCCL_NET": "IB", "NCCL_IB_TC": "2"}),
    ],
)
def test_settings_ask_for_exact_names(derive, ports, dscp, expected):
    found = derive.settings(["eth1"], ports, dscp)
    assert found == {"NCCL_SOCKET_IFNAME": "=eth1", **expected}


@pytest.mark.parametrize("role", ["nccl", "rdma"])
def test_packets_are_marked_as_the_specification_says(role):
    plan = sample_plan(networks={"experiment": {"rate": "100 Gbit/s", "rdma": {"dscp": 46}}})
    assert roles.inputs(plan, role)[f"{role}_dscp"] == 46


NODE = sample_allocation(sample_plan()).nodes[0]


def said(address=NODE.experiment_address, version=23007, memlock=8388608, adapters=()):
    """What NCCL and the question around it print."""
    chosen = f"node-0:34:34 [0] NCCL INFO Bootstrap: Using eth1:{address}<0>\n" if address else ""
    answer = {"version": version, "memlock": memlock, "adapters": list(adapters)}
    return (
        "node-0:34:34 [0] NCCL INFO NCCL_SOCKET_IFNAME set by environment to =eth1\n"
        f"{chosen}{json.dumps(answer)}\n"
        "node-0:34:35 [0] NCCL INFO Socket handshake magic 0x564ab9f2fc4b9d6c\n"
    )


def results(text):
    return {c.id: c for c in cuda.on_node(recipes.load("cuda13"), NODE, text)}


def test_the_recipes_nccl_on_the_experiment_network_passes():
    found = results(said())
    assert (found["nccl.version"].result, found["nccl.version"].value) == ("pass", "2.30.7")
    assert found["nccl.interface"].result == "pass"
    assert found["nccl.memlock"].result == "skip"


@pytest.mark.parametrize(
    ("text", "id_", "why"),
    [
        (said(version=22803), "nccl.version", "not the recipe's"),
        (said(address="192.0.2.7"), "nccl.interface", "another network"),
        (said(address=None), "nccl.interface", "no interface"),
        (said(adapters=["mlx5_0"]), "nccl.memlock", "needs locked memory"),
        ("libnccl.so.2: cannot open shared object file", "nccl.version", "does not load"),
        ("", "nccl.version", "does not load"),
    ],
)
def test_what_is_wrong_is_told(text, id_, why):
    found = results(text)[id_]
    assert found.result == "fail"
    assert why in found.reason


def test_unlimited_memory_passes():
    found = results(said(adapters=["mlx5_0"], memlock=-1))["nccl.memlock"]
    assert (found.result, found.value) == ("pass", "unlimited")


def test_infiniband_is_a_network_of_its_own_and_links_that_are_down_do_not_count(derive, sysfs):
    sysfs("mlx5_0", layer="InfiniBand")
    sysfs("mlx5_0", port="2", layer="InfiniBand", state="1: DOWN")
    tree = sysfs("mlx5_10", layer="InfiniBand", state="2: INIT")
    assert derive.adapters(tree, [], []) == ["mlx5_0:1"]


def test_adapters_that_manage_nvswitches_are_no_way_to_other_nodes(derive, sysfs):
    """HGX B200: four such ports are active beside those of its network."""
    sysfs("mlx5_0", layer="InfiniBand")
    tree = sysfs("mlx5_8", layer="InfiniBand")
    for name, product in (("mlx5_0", b"ConnectX-7"), ("mlx5_8", b"\x00SW_MNG\x00")):
        (tree / "class/infiniband" / name / "device").mkdir()
        (tree / "class/infiniband" / name / "device/vpd").write_bytes(product)
    assert derive.adapters(tree, [], []) == ["mlx5_0:1"]

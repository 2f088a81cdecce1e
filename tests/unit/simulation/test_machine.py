"""Machines that pretend to have GPUs: addresses, identities, what joins them."""

import pytest

from support import simulated
from support.simulated import machine

CPUS = [0, 1, 2, 3]


def made(name, gpus, node="node-0"):
    return machine.machine(simulated.model(name), gpus, node, cpus=CPUS)


def test_a_node_keeps_its_gpus_and_another_has_others():
    one, again, other = made("T4", 2), made("T4", 2), made("T4", 2, "node-1")
    identities = [gpu["uuid"] for gpu in one["gpus"] + other["gpus"]]
    assert one == again
    assert len(set(identities)) == 4
    assert len({gpu["serial"] for gpu in one["gpus"] + other["gpus"]}) == 4


def test_gpus_and_cpus_are_shared_out_over_two_sockets():
    numa = made("A100-SXM4-80GB", 8)
    assert [gpu["numa_node"] for gpu in numa["gpus"]] == [0] * 4 + [1] * 4
    assert [node["cpus"] for node in numa["numa"]] == [[0, 1], [2, 3]]
    assert numa["gpus"][7]["cpus"] == [2, 3]


@pytest.mark.parametrize(
    ("name", "gpus", "first_row", "switches"),
    [
        ("A100-SXM4-80GB", 8, ["X"] + ["NV12"] * 7, 6),
        ("A100-SXM4-40GB", 4, ["X"] + ["NV4"] * 3, 0),
        ("H100-SXM5-80GB", 8, ["X"] + ["NV18"] * 7, 4),
        ("H100-SXM5-80GB", 4, ["X"] + ["NV6"] * 3, 0),
        ("H200-SXM5-141GB", 8, ["X"] + ["NV18"] * 7, 4),
        ("B200-SXM6-180GB", 8, ["X"] + ["NV18"] * 7, 4),
        ("V100-SXM2-16GB", 8, ["X", "NV1", "NV1", "NV2", "NV2", "SYS", "SYS", "SYS"], 0),
        ("V100-SXM2-32GB", 4, ["X"] + ["NV2"] * 3, 0),
        ("P100-SXM2-16GB", 8, ["X", "NV1", "NV1", "NV1", "NV1", "SYS", "SYS", "SYS"], 0),
        ("K80", 4, ["X", "PIX", "SYS", "SYS"], 0),
        ("T4", 4, ["X", "NODE", "SYS", "SYS"], 0),
        ("RTX-5090", 1, ["X"], 0),
    ],
)
def test_what_joins_gpus_is_what_such_a_board_has(name, gpus, first_row, switches):
    pretended = made(name, gpus)
    assert pretended["topology"][0] == first_row
    assert len(pretended["nvswitches"]) == switches
    assert pretended["fabric_manager"] == bool(switches)


@pytest.mark.parametrize("gpus", [0, 9])
def test_a_machine_has_room_for_eight(gpus):
    with pytest.raises(ValueError, match="1 to 8 GPUs"):
        made("T4", gpus)


@pytest.mark.parametrize("fault", [("on-fire", 0), ("throttled", 2)])
def test_unknown_faults_and_gpus_are_refused(fault):
    with pytest.raises(ValueError, match="no fault"):
        machine.nvml_text(made("T4", 2), [fault])

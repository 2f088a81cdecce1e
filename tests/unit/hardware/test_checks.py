"""What `gpubed verify` says about hardware, on what recorded machines answer.

The session to a node is a stand-in: it hands out what `gpubed-facts` printed.
"""

import json
from types import SimpleNamespace

import pytest

from gpubed.checks import accelerator
from gpubed.checks.context import Context
from support import machines
from support.samples import sample_allocation, sample_plan


@pytest.fixture
def verify(tmp_path):
    """A function that runs a check on a cluster of recorded machines."""

    def run(check, names, gpus, ecc="0\n"):
        plan = sample_plan(nodes=[{"name": "node", "count": len(names)}])
        allocation = sample_allocation(plan)
        nodes = tuple(node.model_copy(update={"gpus": gpus}) for node in allocation.nodes)
        answers = {
            node.name: json.dumps(machines.facts(name, tmp_path / node.name)) if name else ""
            for node, name in zip(nodes, names, strict=True)
        }
        sessions = {
            name: SimpleNamespace(
                run=lambda command, answer=answer, **_: SimpleNamespace(
                    stdout=answer if command == "gpubed-facts" else ecc
                )
            )
            for name, answer in answers.items()
        }
        context = Context(None, plan, allocation.model_copy(update={"nodes": nodes}), sessions)
        return {(found.id, found.node): found for found in check(context)}

    return run


def test_hardware_is_described(verify):
    found = verify(accelerator.hardware, ["h100-hgx", "none"], 0)
    assert (
        "8 x NVIDIA H100 80GB HBM3, 4 NVSwitches, HCA mlx5_0"
        in found["hardware.identified", "node-0"].value
    )
    assert {check.result for check in found.values()} == {"pass"}


def test_an_unknown_gpu_fails(verify):
    check = verify(accelerator.hardware, ["unknown"], 0)["hardware.identified", "node-0"]
    assert (check.result, check.reason) == ("fail", "unknown GPUs: NVIDIA fff0")


def test_a_node_that_tells_nothing_fails(verify):
    check = verify(accelerator.hardware, [None], 0)["hardware.identified", "node-0"]
    assert check.result == "fail"
    assert "gpubed configure" in check.reason


def test_as_many_gpus_as_asked_for_pass(verify):
    found = verify(accelerator.gpus, ["t4", "p100"], 2)
    assert {check.result for check in found.values()} == {"pass"}


def test_fewer_gpus_fail_with_both_numbers(verify):
    check = verify(accelerator.gpus, ["t4"], 4)["gpu.count", "node-0"]
    assert (check.result, check.value, check.limit) == ("fail", 2, "at least 4")
    assert "asks for 4 GPU(s) and 2 answer(s); 2 are on the PCI bus: Tesla T4" in check.reason


def test_a_lost_gpu_is_named(verify):
    check = verify(accelerator.gpus, ["mixed"], 2)["gpu.count", "node-0"]
    assert check.result == "fail"
    assert "1 answer(s); 2 are on the PCI bus" in check.reason
    assert "Turing TU104 at 0000:af:00.0" in check.reason


def test_a_node_without_gpus_fails(verify):
    check = verify(accelerator.gpus, ["none"], 1)["gpu.count", "node-0"]
    assert "asks for 1 GPU(s) and 0 answer(s); 0 are on the PCI bus: none" in check.reason


def test_different_drivers_fail(verify):
    found = verify(accelerator.gpus, ["k80", "t4"], 2)
    check = found["gpu.driver", "node-0"]
    assert (check.result, check.reason) == ("fail", "drivers of the cluster: 470.256.02, 580.82.07")


def test_uncorrected_errors_fail(verify):
    check = verify(accelerator.gpus, ["t4"], 2, ecc="0\n3\n")["gpu.ecc", "node-0"]
    assert (check.result, check.value) == ("fail", 3)


def test_without_ecc_counters_nothing_is_claimed(verify):
    assert verify(accelerator.gpus, ["t4"], 2, ecc="[N/A]\n")["gpu.ecc", "node-0"].result == "skip"

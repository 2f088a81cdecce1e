"""What `gpubed verify` says about hardware, on what recorded machines answer.

The session to a node is a STAND-IN: it hands out what `gpubed-facts`, `gpubed-gpus` and
nvidia-smi printed. What `gpubed-gpus` would measure is made up here.
"""

import itertools
import json
from pathlib import Path
from tempfile import mkdtemp
from types import SimpleNamespace

import pytest

from gpubed.checks import accelerator, compute, software
from gpubed.checks.context import Context
from gpubed.hardware import minimum_bandwidth
from gpubed.hardware.facts import GPU
from gpubed.nodes.allocation import Cluster
from gpubed.nodes.ssh import CommandResult
from support import machines
from support.samples import sample_allocation, sample_plan

pytestmark = pytest.mark.process


def figure(value=None, error=""):
    return {"value": value, "error": error}


def proof(gpus=2, rate=400e9, simulated=None, **changes):
    """What `gpubed-gpus` prints where that many GPUs compute."""
    groups = [*itertools.combinations(range(gpus), 2), *([range(gpus)] if gpus > 2 else [])]
    return {
        "asked": gpus,
        "simulated": simulated,
        "error": "",
        "gpus": [
            {
                "index": index,
                "name": "Tesla T4",
                "capability": "7.5",
                "compute": figure(4.2),
                "memory": figure(7.0),
            }
            for index in range(gpus)
        ],
        "collectives": [{"gpus": list(group), "rate": figure(rate)} for group in groups]
        if not simulated
        else [],
        **changes,
    }


def ecc(*cells, mode="Enabled"):
    return "".join(f"{index}, {mode}, {cell}\n" for index, cell in enumerate(cells))


NO_ERRORS = ecc("0", "0")


@pytest.fixture
def verify(tmp_path):
    """A function that runs a check on a cluster of recorded machines."""

    def run(check, names, gpus, ecc=NO_ERRORS, proof=None, recipe="cuda13"):
        plan = sample_plan(nodes=[{"name": "node", "count": len(names)}], recipe=recipe)
        allocation = sample_allocation(plan)
        nodes = tuple(node.model_copy(update={"gpus": gpus}) for node in allocation.nodes)
        sessions = {}
        for node, name in zip(nodes, names, strict=True):
            facts = json.dumps(machines.facts(name, Path(mkdtemp(dir=tmp_path)))) if name else ""
            said = {
                "gpubed-facts": facts,
                "gpubed-gpus": json.dumps(proof) if proof else "sh: gpubed-gpus: not found",
            }
            sessions[node.name] = SimpleNamespace(
                run=lambda command, said=said, **_: CommandResult(
                    said.get(command, ecc), "", 0 if command in said or ecc else 9, 0.1
                )
            )
        context = Context(
            Cluster(None, plan, allocation.model_copy(update={"nodes": nodes})), sessions
        )
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
    found = verify(accelerator.gpus, ["t4", "p100"], 2, proof=proof())
    assert {check.result for check in found.values()} == {"pass"}


def test_what_nvidia_smi_says_is_not_enough(verify):
    """The machine looks whole, but its ranks would compute on the CPU."""
    broken = proof(0, error="Found no NVIDIA driver on your system.")
    found = {}
    for check in (accelerator.gpus, compute.compute, software.gpus):
        found |= verify(check, ["t4"], 2, proof=broken)
    results = {id_: check.result for (id_, _), check in found.items()}
    assert results.pop("gpu.allreduce") == "skip"
    assert set(results.values()) == {"fail"}, results
    assert "Found no NVIDIA driver" in found["gpu.compute", "node-0"].reason


@pytest.mark.parametrize(
    ("said", "result", "reason"),
    [
        (ecc("0", "3"), "fail", "replace the GPU"),
        (ecc("[N/A]", "[N/A]"), "fail", "cannot be read"),
        (ecc("0", "[GPU is lost]"), "fail", "GPU 1: Enabled [GPU is lost]"),
        (ecc("0"), "fail", "1 of 2 GPUs answer"),
        ("0, Enabled, 0\n1, Disabled, [N/A]\n", "fail", "GPU 1 has ECC switched off"),
        ("0, [N/A], [N/A]\n1, [Unknown Error], [N/A]\n", "fail", "GPU 1: [Unknown Error]"),
        (ecc("0", "0"), "pass", ""),
    ],
)
def test_counters_of_a_data_centre_gpu_are_read_or_fail(verify, said, result, reason):
    check = verify(accelerator.gpus, ["t4"], 2, ecc=said, proof=proof())["gpu.ecc", "node-0"]
    assert check.result == result
    assert reason in check.reason


@pytest.mark.parametrize(
    ("mode", "why"), [("[N/A]", "has no ECC"), ("Disabled", "has ECC switched off")]
)
def test_boards_without_ecc_are_skipped_by_what_their_driver_says(verify, mode, why):
    said = ecc("[N/A]", "[N/A]", mode=mode)
    found = verify(accelerator.gpus, ["t4"], 2, ecc=said, proof=proof())["gpu.ecc", "node-0"]
    assert (found.result, found.reason) == ("skip", f"GPU 0 {why}; GPU 1 {why}")
    lost = ecc("[N/A]", "[GPU requires reset]", mode=mode)
    found = verify(accelerator.gpus, ["t4"], 2, ecc=lost, proof=proof())
    assert found["gpu.ecc", "node-0"].result == "fail"


def test_gpus_that_compute_remember_and_sum_pass(verify):
    found = verify(compute.compute, ["h100-hgx"], 8, proof=proof(8))
    assert {id_: check.result for (id_, _), check in found.items()} == {
        "gpu.compute": "pass",
        "gpu.memory": "pass",
        "gpu.pairs": "pass",
        "gpu.allreduce": "pass",
    }


def changed(document, index, **figures):
    document["gpus"][index] |= figures
    return document


@pytest.mark.parametrize(
    ("document", "id_", "reason"),
    [
        (
            changed(proof(), 1, compute=figure(error="7 numbers of 3 products are wrong")),
            "gpu.compute",
            "GPU 1: 7 numbers of 3 products are wrong",
        ),
        (
            changed(proof(), 0, compute=figure(1.1)),
            "gpu.compute",
            "GPU 0 does 1.1 TFLOP/s and its neighbour 4.2",
        ),
        (
            changed(proof(), 1, memory=figure(error="1 words of memory changed")),
            "gpu.memory",
            "GPU 1: 1 words of memory changed",
        ),
        (proof(1), "gpu.memory", "1 of 2 GPUs can be used"),
        (proof(1), "gpu.pairs", "0 of 1 pairs summed"),
        (proof(rate=1e9), "gpu.pairs", "GPU0-GPU1: 1.0 GB/s over"),
        (
            proof(collectives=[{"gpus": [0, 1], "rate": figure(error="the sum is wrong")}]),
            "gpu.pairs",
            "GPU0-GPU1: the sum is wrong",
        ),
    ],
)
def test_what_a_gpu_does_wrong_fails(verify, document, id_, reason):
    check = verify(compute.compute, ["t4"], 2, proof=document)[id_, "node-0"]
    assert check.result == "fail"
    assert reason in check.reason


def test_nothing_travels_between_pretended_gpus(verify):
    found = verify(compute.compute, ["t4"], 2, proof=proof(2, simulated="T4"))
    assert found["gpu.pairs", "node-0"].result == "simulated"
    assert found["gpu.allreduce", "node-0"].result == "simulated"


def gpu(generation, chip=None, pcie=None, **links):
    known = {"generation": generation, "chip": chip, "pcie": pcie, "links": links}
    return GPU(pci="0", device_id="0", index=0, **known)


GEN4_X8 = {"gts": 16, "lanes": 8}


@pytest.mark.parametrize(
    ("one", "giga"),
    [
        (gpu("Hopper", GPU1="NV18"), 135),
        (gpu("Ampere", "GA100", GPU1="NV12"), 90),
        (gpu("Hopper", GPU1="SYS"), 15.754),
        (gpu("Turing", GPU1="PHB"), 3.938),
        (gpu("Hopper", pcie=GEN4_X8, GPU1="SYS"), 3.938),
        (gpu("Hopper", pcie=GEN4_X8, GPU1="NV18"), 135),
        (gpu("Pascal", pcie={"gts": 5, "lanes": 16}, GPU1="PHB"), 2),
    ],
)
def test_the_floor_of_a_pair_follows_its_connection(one, giga):
    other = one.model_copy(update={"index": 1})
    assert minimum_bandwidth.pair(one, other)[0] == pytest.approx(giga * 1e9, rel=1e-3)


@pytest.mark.parametrize(
    ("one", "giga"), [(gpu("Hopper", GPU1="NV18"), 270), (gpu("Turing", GPU1="PHB"), 3.938)]
)
def test_nvswitches_make_all_links_count(one, giga):
    other = one.model_copy(update={"index": 1})
    assert minimum_bandwidth.pair(one, other, switched=True)[0] == pytest.approx(
        giga * 1e9, rel=1e-3
    )

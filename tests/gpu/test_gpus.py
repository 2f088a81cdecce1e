"""What `gpubed verify` and jobs do on a real GPU."""

import json
import os
import subprocess
import sys

import pytest

from gpu.conftest import ROOT
from gpubed.checks import compute
from gpubed.checks.gpu_proof import Proof
from support.samples import sample_allocation, sample_plan

pytestmark = pytest.mark.gpu

PROGRAM = ROOT / "roles/verify/files/gpubed-gpus"
DEVICE = ROOT / "roles/horovod/files/gpubed-device"
DIGITS = ROOT / "jobs/digits/main.py"


@pytest.fixture(scope="module")
def proof(gpus):
    done = gpus.run(PROGRAM, GPUBED_GPUS=str(len(gpus.names)))
    return Proof.model_validate_json(done.stdout)


def test_each_gpu_computes_and_remembers(gpus, proof):
    assert (proof.error, proof.simulated) == ("", None)
    assert [gpu.name for gpu in proof.gpus] == gpus.names
    assert not [gpu for gpu in proof.gpus if gpu.compute.error or gpu.memory.error]
    # A processor does less, and the GPU's memory was used at all.
    assert all(gpu.compute.value > 1 and gpu.memory.value > 0.5 for gpu in proof.gpus)


def test_each_pair_sums_with_nccl(gpus, proof):
    if len(gpus.names) < 2:
        pytest.skip("one GPU has no other to sum with")
    pairs = [sum_ for sum_ in proof.collectives if len(sum_.gpus) == 2]
    assert len(pairs) == len(gpus.names) * (len(gpus.names) - 1) // 2
    assert not [sum_.rate.error for sum_ in proof.collectives if sum_.rate.error]


def test_what_they_did_passes(gpus, proof):
    node = sample_allocation(sample_plan()).nodes[0]
    node = node.model_copy(update={"gpus": len(gpus.names)})
    found = {check.id: check for check in compute.on_node(node, proof, None)}
    assert found["gpu.compute"].result == found["gpu.memory"].result == "pass", found


def test_more_gpus_than_there_are_fail(gpus):
    node = sample_allocation(sample_plan()).nodes[0]
    asked = len(gpus.names) + 1
    proof = Proof.model_validate_json(gpus.run(PROGRAM, GPUBED_GPUS=str(asked)).stdout)
    found = compute.on_node(node.model_copy(update={"gpus": asked}), proof, ())
    assert {check.id: check.result for check in found}["gpu.compute"] == "fail"


def test_hidden_gpus_end_a_rank(gpus):
    command = [sys.executable, DEVICE, "0"]
    given = {**os.environ, "GPUBED_GPUS": "1"}
    done = subprocess.run(command, env=given, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("cuda:0 cuda:"), done.stderr
    hidden = {**given, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, env=hidden, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")


def test_digits_learns_on_the_gpu_what_it_learns_on_the_cpu(gpus, tmp_path):
    if not gpus.has("horovod.torch"):
        pytest.skip(f"{gpus.python} has no Horovod")
    found = {}
    for device in ("cuda:0", "cpu"):
        out = tmp_path / device
        out.mkdir()
        done = gpus.run(DIGITS, "--out", out, GPUBED_DEVICE=device)
        assert done.returncode == 0, done.stderr
        found[device] = json.loads((out / "metrics.json").read_text())
    assert found["cuda:0"]["device"] == "cuda:0"
    assert found["cuda:0"]["gpu_percent"] is not None
    accuracies = [metrics["test_accuracy"] for metrics in found.values()]
    assert accuracies == pytest.approx([0.98, 0.98], abs=0.02)

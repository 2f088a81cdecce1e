"""`gpubed-gpus` where no GPU is: torch is a STAND-IN, that computes nothing or a few numbers.

What it computes runs on real GPUs in tests/gpu, and on the CPU of simulated nodes.
"""

import sys
from types import SimpleNamespace

import pytest

from support import by_path, machines

PROGRAM = machines.ROOT / "roles/verify/files/gpubed-gpus"
GOOD = "NVIDIA A100-SXM4-80GB, 8.0"


def refuse():
    raise RuntimeError("Found no NVIDIA driver on your system.\nPlease check")


@pytest.fixture
def program(monkeypatch):
    cuda = SimpleNamespace(init=refuse, device_count=lambda: 0)
    torch = SimpleNamespace(device=lambda *words: words, cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", torch)
    module = by_path.load(PROGRAM, "gpubed_gpus")
    monkeypatch.setattr(module, "multiply", lambda *_: 0.01)
    monkeypatch.setattr(module, "hold", lambda *_: 0.1)
    return module


@pytest.fixture
def nvidia_smi(program, monkeypatch):
    """A function that says what nvidia-smi answers."""

    def answers(*rows, returncode=0):
        done = SimpleNamespace(stdout="\n".join(rows), stderr="", returncode=returncode)
        monkeypatch.setattr(program.subprocess, "run", lambda *_, **__: done)

    return answers


def test_gpus_that_cannot_be_used_are_not_replaced_by_the_cpu(program, monkeypatch):
    monkeypatch.setenv("GPUBED_GPUS", "2")
    found = program.answer()
    assert found["error"] == "Found no NVIDIA driver on your system."
    assert (found["simulated"], found["gpus"]) == (None, [])


def test_no_more_gpus_than_asked_for_are_used(program, monkeypatch):
    monkeypatch.setenv("GPUBED_GPUS", "2")
    monkeypatch.setattr(program.torch, "cuda", SimpleNamespace(init=list, device_count=lambda: 4))
    monkeypatch.setattr(program, "examine", lambda index: index)
    monkeypatch.setattr(program, "reduce", list)
    found = program.answer()
    assert (found["gpus"], found["collectives"]) == ([0, 1], [[0, 1]])


@pytest.fixture
def pretending(monkeypatch):
    monkeypatch.setenv("GPUBED_GPUS", "2")
    monkeypatch.setenv("GPUBED_SIMULATED", "A100-SXM4-80GB")


def test_a_pretended_gpu_says_that_it_is(program, nvidia_smi, pretending):
    nvidia_smi(f"0, {GOOD}", f"1, {GOOD}", f"2, {GOOD}")
    found = program.answer()
    assert (found["simulated"], found["error"], len(found["gpus"])) == ("A100-SXM4-80GB", "", 2)


@pytest.mark.parametrize("words", ["[GPU is lost]", "[GPU requires reset]", "[Unknown Error]"])
def test_a_pretended_gpu_can_be_broken(program, nvidia_smi, pretending, words):
    nvidia_smi(f"0, {GOOD}", f"1, {words}, {words}")
    well, broken = program.answer()["gpus"]
    assert well["compute"]["error"] == ""
    assert broken["compute"] == {"value": None, "error": f"nvidia-smi says {words}"}


def test_a_driver_that_answers_nothing_is_an_error(program, nvidia_smi, pretending):
    nvidia_smi("Failed to initialize NVML: Driver/library version mismatch", returncode=18)
    found = program.answer()
    assert "Driver/library version mismatch" in found["error"]
    assert found["gpus"] == []

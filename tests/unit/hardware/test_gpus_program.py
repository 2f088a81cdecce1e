"""`gpubed-gpus` where no GPU is: torch is a STAND-IN, that computes nothing or a few numbers.

What it computes runs on real GPUs in tests/gpu, and on the CPU of simulated nodes.
"""

import operator
import random
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


def test_each_pair_and_all_together_sum(program, monkeypatch):
    monkeypatch.setattr(program, "reduce", tuple)
    assert program.collectives(1) == []
    assert program.collectives(2) == [(0, 1)]
    assert program.collectives(3) == [(0, 1), (0, 2), (1, 2), (0, 1, 2)]


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


class Tensor:
    """A few numbers on the CPU or on a device that may be broken."""

    broken = ""

    def __init__(self, values, device=None):
        self.values, self.device = list(values), device

    def double(self):
        return self

    float = double

    def to(self, device):
        return Tensor(self.values, device)

    def __matmul__(self, other):
        side = range(round(len(self.values) ** 0.5))
        rows = [self.values[row * len(side) :][: len(side)] for row in side]
        columns = [other.values[column :: len(side)] for column in side]
        product = [sum(map(operator.mul, row, column)) for row in rows for column in columns]
        product[-1] += self.device is not None and self.broken == "core"
        return Tensor(product, self.device)

    def __ne__(self, other):
        others = other.values if isinstance(other, Tensor) else [other] * len(self.values)
        return Tensor(map(operator.ne, self.values, others))

    __hash__ = None

    def __add__(self, other):
        return Tensor([self.item() + (other.item() if isinstance(other, Tensor) else other)])

    __radd__ = __add__

    def sum(self):
        return Tensor([sum(self.values)])

    def any(self):
        return Tensor([any(self.values)])

    def item(self):
        return self.values[0]

    def fill_(self, value):
        self.values = [value] * len(self.values)
        if self.broken == "word":
            self.values[-1] &= ~1


@pytest.fixture
def computing(monkeypatch):
    """The program, and torch with numbers that a device of the name `gpu` gets wrong."""
    shared = Tensor([])

    def empty(words, device, **_):
        block = shared if Tensor.broken == "address" else Tensor([], device)
        block.values = [0] * words
        return block

    def arange(start, stop, out=None, device=None):
        numbers = Tensor(range(start, stop), device)
        if out is not None:
            out.values = numbers.values
        return numbers

    def all_reduce(tensors):
        total = sum(tensor.item() for tensor in tensors)
        for tensor in tensors:
            tensor.values = [total] * len(tensor.values)
        tensors[-1].values[0] -= Tensor.broken == "link"

    nccl = SimpleNamespace(all_reduce=all_reduce)
    cuda = SimpleNamespace(nccl=nccl, synchronize=lambda _: None, empty_cache=lambda: None)
    torch = SimpleNamespace(
        cuda=cuda,
        device=str,
        int64=None,
        Generator=lambda: SimpleNamespace(manual_seed=random.Random),
        randint=lambda low, high, shape, generator: Tensor(
            generator.randrange(low, high) for _ in range(shape[0] * shape[1])
        ),
        zeros=lambda *_, device, **__: Tensor([0], device),
        empty=empty,
        arange=arange,
        full=lambda shape, value, device: Tensor([value] * shape[0], SimpleNamespace(type="")),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setitem(sys.modules, "torch.cuda", cuda)
    module = by_path.load(PROGRAM, "gpubed_gpus_computing")
    little = {"COMPUTE_S": 0.01, "PRODUCTS": 1, "BLOCK_BYTES": 64, "SUM_BYTES": 64}
    for name, value in little.items():
        monkeypatch.setattr(module, name, value)

    def run(broken=""):
        monkeypatch.setattr(Tensor, "broken", broken)
        device = SimpleNamespace(type="cuda")
        found = (module.tried(module.multiply, device, 4), module.tried(module.hold, device, 128))
        return [done["error"] for done in (*found, module.reduce((0, 1))["rate"])]

    return run


def test_a_gpu_that_is_right_has_no_error(computing):
    assert computing() == ["", "", ""]


@pytest.mark.parametrize(
    ("broken", "which", "words"),
    [
        ("core", 0, "products are wrong"),
        ("word", 1, "words of memory changed"),
        ("address", 1, "words of memory changed"),
        ("link", 2, "the sum is wrong"),
    ],
)
def test_a_wrong_answer_is_an_error(computing, broken, which, words):
    errors = computing(broken)
    assert words in errors.pop(which)
    assert errors == ["", ""]

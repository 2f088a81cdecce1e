"""On what job digits computes; torch, Horovod and scikit-learn are STAND-INS that do nothing.

The job itself runs in tests/e2e, on real ranks.
"""

import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from support import by_path

JOB = Path(__file__).parents[2] / "jobs/digits"
STAND_INS = (
    *("horovod", "horovod.torch", "psutil", "sklearn", "sklearn.datasets"),
    *("sklearn.model_selection", "torch", "torch.nn", "torch.utils.data"),
    "torch.utils.data.distributed",
)


@pytest.fixture
def training(monkeypatch):
    for name in STAND_INS:
        monkeypatch.setitem(sys.modules, name, MagicMock())
    module = by_path.load(JOB / "training.py", "digits_training")
    module.torch.device = str
    module.torch.cuda.is_available.return_value = False
    module.torch.cuda.device_count.return_value = 0
    return module


@pytest.mark.parametrize("given", ["cuda:1", "cpu"])
def test_a_rank_computes_on_what_it_was_given_or_not_at_all(training, monkeypatch, given):
    """A GPU that torch cannot use is no reason for the CPU: its first use fails then."""
    monkeypatch.setenv("GPUBED_DEVICE", given)
    assert training.device_of_this_rank() == given


def test_outside_of_a_cluster_it_is_the_cpu(training, monkeypatch):
    monkeypatch.delenv("GPUBED_DEVICE", raising=False)
    assert training.device_of_this_rank() == "cpu"


def test_a_container_without_nvidia_ml_py_trains_and_does_not_know_how_busy_its_gpu_is(training):
    training.torch.cuda.utilization.side_effect = ModuleNotFoundError("pynvml")
    training.time = SimpleNamespace(perf_counter=iter((0.0, 1.0)).__next__)
    training.psutil.Process().cpu_times.return_value = SimpleNamespace(user=1.0, system=0.0)
    load = training.Load(SimpleNamespace(type="cuda"))
    load.sample()
    assert load.read() == (0.0, -1.0)


def test_the_learning_rate_follows_the_number_of_ranks(training):
    """What it takes to learn the same in fewer, larger steps: see tests/support/ranks_of_one.py."""
    at = {ranks: training.scaled(training.Settings.learning_rate, ranks) for ranks in (1, 4, 9)}
    assert at == pytest.approx({1: 0.003, 4: 0.006, 9: 0.009})

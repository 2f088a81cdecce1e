"""The parts of job imagenet that need no torch; torch, Horovod and the like are STAND-INS.

What real ranks do is in test_job_imagenet_ranks.py.
"""

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

JOB = Path(__file__).parents[2] / "jobs/imagenet"
STAND_INS = (
    *("torch", "torch.nn", "torch.optim", "torchvision", "psutil", "numpy", "PIL"),
    *("horovod", "horovod.torch", "torch.distributed", "torch.distributed.device_mesh"),
    *("torch.distributed.algorithms.ddp_comm_hooks", "torch.distributed.fsdp"),
    *("torch.distributed.tensor", "torch.nn.parallel", "torch.utils._pytree"),
)
# What `horovod.torch` of 0.28.1 has of what jobs may want; nothing else is there for them.
HOROVOD = (
    *("init", "shutdown", "rank", "size", "local_rank", "local_size", "cross_rank", "cross_size"),
    *("allreduce", "allreduce_", "allgather_object", "broadcast_", "broadcast_object", "barrier"),
    *("Average", "Sum", "Max", "Min", "Compression", "DistributedOptimizer", "mpi_ops"),
)
CPU, GPU = SimpleNamespace(type="cpu"), SimpleNamespace(type="cuda")


@pytest.fixture
def job(monkeypatch):
    """A function that imports one of the job's modules."""
    for name in STAND_INS:
        monkeypatch.setitem(sys.modules, name, MagicMock())
    hvd = MagicMock(spec=HOROVOD)
    sys.modules["horovod"].torch = hvd
    monkeypatch.setitem(sys.modules, "horovod.torch", hvd)
    # pytest asks numpy, where it is loaded, what a number is.
    sys.modules["numpy"].bool_, sys.modules["numpy"].isscalar = bool, lambda _value: True
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.syspath_prepend(JOB)
    own = {path.stem for path in JOB.glob("*.py")}
    others = {name: sys.modules.pop(name) for name in own & sys.modules.keys()}
    yield importlib.import_module
    for name in own:
        sys.modules.pop(name, None)
    sys.modules.update(others)

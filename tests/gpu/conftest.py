"""Tests on a real GPU, with the Python that has torch: GPUBED_GPU_PYTHON, else this one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.job_ranks import Ranks

ROOT = Path(__file__).parents[2]
_ASK = """
import json, torch
torch.cuda.init()
print(json.dumps([torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]))
"""


class GPUs:
    """The GPUs of this machine, and the Python that reaches them."""

    def __init__(self, python, names):
        self.python, self.names = python, names

    def run(self, *words, **environment):
        settings = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **environment}
        return subprocess.run(
            [self.python, "-B", *map(str, words)],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=False,
        )

    def has(self, module):
        return self.run("-c", f"import {module}").returncode == 0


class OneGPU(Ranks):
    """Ranks that share the first GPU.

    NCCL refuses two ranks of a machine on one GPU. So each is told that it is a machine of its own
    (NCCL_HOSTID), and NCCL goes over TCP, as between nodes without RDMA.
    """

    def __init__(self, python, storage, name):
        super().__init__(python, storage)
        self.name = name

    def environment(self, **more):
        kept = {
            key: os.environ[key] for key in ("LD_LIBRARY_PATH", "PYTHONPATH") if key in os.environ
        }
        given = {"GPUBED_DEVICE": "cuda:0", "GPUBED_DEVICE_NAME": f"cuda:{self.name}"}
        given |= {"GPUBED_INTERFACE": "lo", "NCCL_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": 4}
        return super().environment(**kept, **given, **more)

    def start(self, out, arguments, rank=0, ranks=1, before=None, **more):
        return super().start(out, arguments, rank, ranks, before, NCCL_HOSTID=rank, **more)

    def rank(self):
        return ["sh", "-c", 'NCCL_HOSTID=$HOROVOD_RANK exec "$@"', "sh", self.python]


@pytest.fixture(scope="session")
def ranks(gpus, tmp_path_factory):
    return OneGPU(gpus.python, tmp_path_factory.mktemp("storage"), gpus.names[0])


@pytest.fixture(scope="session")
def gpus():
    python = os.environ.get("GPUBED_GPU_PYTHON", sys.executable)
    asked = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=False)
    if asked.returncode:
        pytest.skip(f"{python} reaches no GPU: {asked.stderr.strip().splitlines()[-1]}")
    return GPUs(python, json.loads(asked.stdout))

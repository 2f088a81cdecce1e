"""Tests on a real GPU, with the Python that has torch: GPUBED_GPU_PYTHON, else this one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.fixture(scope="session")
def gpus():
    python = os.environ.get("GPUBED_GPU_PYTHON", sys.executable)
    asked = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=False)
    if asked.returncode:
        pytest.skip(f"{python} reaches no GPU: {asked.stderr.strip().splitlines()[-1]}")
    return GPUs(python, json.loads(asked.stdout))

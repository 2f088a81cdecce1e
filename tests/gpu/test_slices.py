"""What is known of MIG, against a real GPU. Its mode is not changed: others may use it."""

import subprocess

import pytest

from gpu.conftest import ROOT
from gpubed.hardware.table import mig_profiles

pytestmark = pytest.mark.gpu


def test_slices_are_looked_for_and_nothing_is_changed(gpus):
    ask = ["nvidia-smi", "-i", "0", "--query-gpu=name,mig.mode.current", "--format=csv,noheader"]
    before = subprocess.run(ask, capture_output=True, text=True, check=True).stdout
    name, mode = before.strip().split(", ")
    profiles = mig_profiles(name)
    if not profiles:
        pytest.skip(f"{name} has no MIG profile in the table")
    program = str(ROOT / "roles/nvidia_driver/files/gpubed-slices")
    done = subprocess.run([program, "check", next(iter(profiles)), "1"], check=False)
    assert done.returncode in ((3,) if mode == "Disabled" else (0, 3))
    assert subprocess.run(ask, capture_output=True, text=True, check=True).stdout == before

"""`gpubed-device`, run for real on a driver's library that is a STAND-IN of a few lines.

What it must never do is say `cpu` where a GPU was asked for.
"""

import os
import subprocess
import sys

import pytest
from jinja2 import Environment, StrictUndefined

from support import machines

pytestmark = pytest.mark.process

HOROVOD = machines.ROOT / "roles/horovod"
DEVICE = HOROVOD / "files/gpubed-device"
# Tells what the environment says: how many GPUs there are, and which call fails with which code.
LIBRARY = """
#include <stdlib.h>
#include <stdio.h>
static int code(const char *name) { const char *text = getenv(name); return text ? atoi(text) : 0; }
int cuInit(unsigned flags) { return code("INIT"); }
int cuDeviceGetCount(int *count) { *count = code("COUNT"); return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return code("RETAIN"); }
int cuDevicePrimaryCtxRelease_v2(int device) { return 0; }
int cuDeviceGetName(char *name, int size, int device) {
  return snprintf(name, size, "NVIDIA A100 number %d", device) < 0;
}
int cuGetErrorString(int code, const char **text) {
  *text = code == 803 ? "system has unsupported display driver / cuda driver combination" : "lost";
  return 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cuda")
    (folder / "cuda.c").write_text(LIBRARY)
    command = ["cc", "-shared", "-fPIC", "-o", folder / "libcuda.so.1", folder / "cuda.c"]
    subprocess.run(command, check=True)
    return folder


@pytest.fixture
def ask(library):
    """A function that asks for the device of a rank; `driver` says whether there is one."""

    def run(rank=0, driver=True, **environment):
        found = {"LD_LIBRARY_PATH": str(library)} if driver else {}
        return subprocess.run(
            [sys.executable, DEVICE, str(rank)],
            env={"PATH": os.environ["PATH"], "GPUBED_NODE": "node-0", **found, **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_without_gpus_asked_for_it_is_the_cpu(ask):
    assert ask(GPUBED_GPUS="0").stdout == "cpu cpu\n"
    assert ask(driver=False).stdout == "cpu cpu\n"


def test_a_pretended_gpu_is_the_cpu_and_says_so(ask):
    done = ask(driver=False, GPUBED_GPUS="2", GPUBED_SIMULATED="A100-SXM4-80GB")
    assert done.stdout == "cpu cpu (simulated A100-SXM4-80GB)\n"


def test_a_rank_has_the_gpu_of_its_number(ask):
    done = ask(rank=1, GPUBED_GPUS="2", COUNT="4")
    assert done.stdout == "cuda:1 cuda:NVIDIA A100 number 1\n"


@pytest.mark.parametrize(
    ("rank", "environment", "words"),
    [
        (0, {"INIT": "803", "COUNT": "2"}, "unsupported display driver"),
        (0, {"RETAIN": "101", "COUNT": "2"}, "cuDevicePrimaryCtxRetain: lost (CUDA error 101)"),
        (1, {"COUNT": "1"}, "rank 1 of 2 GPU(s) finds 1 that can be used"),
        (0, {"COUNT": "0"}, "rank 0 of 2 GPU(s) finds 0"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_never_the_cpu(ask, rank, environment, words):
    done = ask(rank=rank, GPUBED_GPUS="2", **environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert "node-0 was asked for GPUs" in done.stderr
    assert words in done.stderr


def test_a_missing_driver_is_named(ask):
    done = ask(driver=False, GPUBED_GPUS="1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no NVIDIA driver (libcuda.so.1" in done.stderr


def test_in_slurm_the_job_asks(ask):
    """A job that asked for no GPU has none, on whatever node."""
    job = {"SLURM_JOB_ID": "7", "GPUBED_GPUS": "4"}
    assert ask(**job, COUNT="0").stdout == "cpu cpu\n"
    assert ask(rank=1, **job, SLURM_GPUS_ON_NODE="2", COUNT="2").stdout.startswith("cuda:1 ")
    assert ask(**job, SLURM_GPUS_ON_NODE="2", COUNT="0").returncode == 1


@pytest.mark.parametrize(
    ("rank", "own", "device"),
    [(0, "0", 0), (1, "1", 0), (0, "0,1", 0), (1, "2,3", 1), (2, "4,5", 0), (3, "6,7", 1)],
)
def test_a_rank_takes_one_of_its_own_where_slurm_gives_each_some(ask, rank, own, device):
    """As with --gpus-per-task: it sees its own only, and gpubed-rank binds it to the same."""
    job = {"SLURM_JOB_ID": "7", "SLURM_GPUS_ON_NODE": "8", "SLURM_STEP_GPUS": own}
    seen = str(len(own.split(",")))
    assert ask(rank=rank, **job, COUNT=seen).stdout.startswith(f"cuda:{device} ")
    lost = ask(rank=rank, **job, COUNT=str(device))
    assert (lost.returncode, lost.stdout) == (1, "")


def test_a_run_that_slurm_gave_no_gpus_does_not_start(ask):
    """`gpubed run --launcher slurm` has all GPUs of its nodes, or ends."""
    job = {"SLURM_JOB_ID": "7", "GPUBED_GPUS": "2", "GPUBED_RUN_DIR": "/shared/runs/x"}
    assert ask(**job, COUNT="0").returncode == 1
    assert ask(rank=1, **job, COUNT="2").stdout.startswith("cuda:1 ")


@pytest.fixture
def rank(tmp_path, library):
    """A function that starts a rank with `gpubed-rank`, as a launcher does."""
    template = Environment(undefined=StrictUndefined, trim_blocks=True).from_string(
        (HOROVOD / "templates/gpubed-rank.j2").read_text()
    )
    program = tmp_path / "gpubed-rank"
    text = template.render(ansible_managed="managed", __horovod_bin="/nowhere")
    text = text.replace("/etc/gpubed", str(tmp_path))
    program.write_text(text.replace("/usr/local/bin", str(DEVICE.parent)))
    (tmp_path / "horovod.env").write_text("GPUBED_GPUS=2\n")

    def run(**environment):
        return subprocess.run(
            ["sh", program, "sh", "-c", 'echo "$GPUBED_DEVICE, $GPUBED_DEVICE_NAME"'],
            env={"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(library), **environment},
            capture_output=True,
            text=True,
            check=False,
        )

    return run


def test_a_rank_is_told_its_device(rank):
    done = rank(HOROVOD_LOCAL_RANK="1", COUNT="2")
    assert done.stdout == "cuda:1, cuda:NVIDIA A100 number 1\n"


def test_a_rank_whose_gpu_is_broken_does_not_start(rank):
    done = rank(HOROVOD_LOCAL_RANK="1", COUNT="2", RETAIN="101")
    assert (done.returncode, done.stdout) == (1, "")

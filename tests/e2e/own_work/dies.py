"""Rank 1 fails in the way that its argument names, while the others wait for it."""

import ctypes
import importlib
import mmap
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import horovod.torch as hvd
import torch

SHM = Path("/dev/shm/dies-py")  # the next run removes it


def fill(place):
    with place.open("wb") as file:
        while True:
            file.write(bytes(2**24))


def shared_memory():
    """Touch more of /dev/shm than it has, as a loader of data with many workers does."""
    size = os.statvfs("/dev/shm").f_frsize * os.statvfs("/dev/shm").f_blocks + 2**20
    with SHM.open("wb+") as file:
        file.truncate(size)
        with mmap.mmap(file.fileno(), size) as memory:
            for at in range(0, size, mmap.PAGESIZE):
                memory[at] = 1


def memory():
    """Use what the node has; the kernel ends this process first."""
    Path("/proc/self/oom_score_adj").write_text("1000")
    kept = []
    while True:
        kept.append(b"x" * 2**26)


def files():
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    kept = [os.open("/dev/null", os.O_RDONLY) for _ in range(100)]
    raise AssertionError(len(kept))


def gpu_memory():
    """Say what torch 2.15 says; no GPU is needed."""
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB "
        "of which 1.25 GiB is free. Including non-PyTorch memory, this process has 77.85 GiB "
        "memory in use."
    )


def by(number):
    return lambda: os.kill(os.getpid(), number)


WAYS = {
    "abort": os.abort,
    "assertion": lambda: exec("assert 1 == 2, 'one is not two'"),
    "child": lambda: subprocess.run(["false"], check=True),
    "early": lambda: sys.exit(0),
    "exit": lambda: os._exit(7),
    "file": lambda: Path("labels.csv").read_text(),
    "files": files,
    "float": by(signal.SIGFPE),
    "full": lambda: fill(SHM),
    "gpu_memory": gpu_memory,
    "illegal": by(signal.SIGILL),
    "import": lambda: exec("from torch import nothing"),
    "key": lambda: {}["labels.csv"],
    "kill": by(signal.SIGKILL),
    "library": lambda: ctypes.CDLL("libnothing.so.1"),
    "memory": memory,
    "module": lambda: importlib.import_module("einops"),
    "permission": lambda: Path("/etc/labels.csv").write_text(""),
    "quit": lambda: sys.exit("no labels"),
    "recursion": lambda: (again := lambda: again()) and again(),
    "segfault": lambda: ctypes.string_at(0),
    "shared_memory": shared_memory,
    "symbol": lambda: ctypes.CDLL(None).nothing,
    "unicode": lambda: b"\xff".decode(),
    "value": lambda: int("ten"),
}

SHM.unlink(missing_ok=True)
hvd.init()
if hvd.rank() == 1:
    time.sleep(1)  # the others wait by then
    WAYS[sys.argv[1]]()
hvd.allreduce(torch.zeros(1))

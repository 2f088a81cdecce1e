"""Rank 1 ends as its argument says while the others wait for it."""

import os
import signal
import sys

import horovod.torch as hvd
import torch

hvd.init()
if hvd.rank() == 1:
    if sys.argv[1] == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    import einops  # noqa: F401
hvd.allreduce(torch.zeros(1))

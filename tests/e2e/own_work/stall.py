"""Rank 1 does not come to the collective that the others wait for."""

import time

import horovod.torch as hvd
import torch

hvd.init()
if hvd.rank() == 1:
    time.sleep(120)
hvd.allreduce(torch.zeros(1), name="grad")

"""Rank 1 fails while the others wait for it."""

import horovod.torch as hvd
import torch

hvd.init()
if hvd.rank() == 1:
    raise KeyError("labels.csv")
hvd.allreduce(torch.zeros(1))

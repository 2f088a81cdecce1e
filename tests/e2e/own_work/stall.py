"""Rank 1 does not come to the collective that the others wait for."""

import threading
import time

import horovod.torch as hvd
import torch

threading.Thread(target=time.sleep, args=(120,), daemon=True).start()
hvd.init()
if hvd.rank() == 1:
    time.sleep(120)
hvd.allreduce(torch.zeros(1), name="grad")

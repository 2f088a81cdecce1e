"""Trains job digits as so many ranks do, in one process, and prints its metrics.

The gradient of a large batch is the mean of those of its parts, so one process without
Horovod (a STAND-IN here) takes the same steps as many ranks: arguments: RANKS SEED.
"""

import json
import sys
from types import ModuleType

ranks, seed = map(int, sys.argv[1:])
alone = ModuleType("horovod.torch")
alone.size, alone.rank, alone.Sum = lambda: 1, lambda: 0, None
alone.allreduce = lambda value, **_: value
alone.allgather_object = lambda value: [value]
alone.broadcast_parameters = alone.broadcast_optimizer_state = lambda *_, **__: None
alone.DistributedOptimizer = lambda optimizer, **_: optimizer
alone.nccl_built = lambda: False
horovod = ModuleType("horovod")
horovod.torch, horovod.__version__ = alone, "none"
sys.modules |= {"horovod": horovod, "horovod.torch": alone}

import training  # noqa: E402  # job digits, with the stand-in

scaled = training.scaled
training.scaled = lambda rate, _one: scaled(rate, ranks)
batch = training.Settings.batch * ranks
sys.stdout.write(json.dumps(training.train(training.Settings(batch=batch, seed=seed))))

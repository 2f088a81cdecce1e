"""A script of Horovod as its examples have it: prints, and writes no figures."""

import argparse

import horovod.torch as hvd
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--value", type=float, default=1.0)
value = parser.parse_args().value
hvd.init()
total = hvd.allreduce(torch.tensor([value]), op=hvd.Sum).item()
print(f"hvd: rank {hvd.rank()} of {hvd.size()}, sum {total:g}")
with open(f"rank-{hvd.rank()}.txt", "w") as out:
    out.write(f"{total:g}")

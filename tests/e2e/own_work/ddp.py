"""A script of torch.distributed as its tutorials have it; knows nothing of gpubed."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def train():
    rank, world = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 4)).pow(2).mean()
        loss.backward()
        optimizer.step()
    weights = [torch.zeros(1, 4) for _ in range(world)]
    dist.all_gather(weights, model.module.weight.data)
    same = all(torch.equal(weights[0], other) for other in weights)
    print(f"ddp: rank {rank} of {world}, local {os.environ['LOCAL_RANK']}, same weights: {same}")


dist.init_process_group("gloo")
train()  # a model that outlives its group can abort the process (pytorch/pytorch#190489)
dist.destroy_process_group()

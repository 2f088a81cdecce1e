"""FSDP on CPUs: shards of a model's parameters on all ranks."""

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard


def train():
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(
                layer, mesh=dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
            )
    fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs = torch.randn(128, 64)
    labels = (inputs.sum(1) > 0).long()
    for _ in range(20):
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"fsdp: rank {dist.get_rank()} of {dist.get_world_size()}, loss {loss.item():.3f}")


dist.init_process_group("gloo")
train()
dist.destroy_process_group()

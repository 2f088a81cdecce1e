"""Ignite's distributed launcher finds the world that is there."""

import ignite.distributed as idist
import torch
from ignite.engine import Engine


def train(_):
    model = idist.auto_model(torch.nn.Linear(64, 2))
    optimizer = idist.auto_optim(torch.optim.Adam(model.parameters(), lr=0.01))

    def step(_, batch):
        inputs = batch
        labels = (inputs.sum(1) > 0).long()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    trainer = Engine(step)
    trainer.run([torch.randn(32, 64) for _ in range(5)], max_epochs=2)
    print(f"ignite: rank {idist.get_rank()} of {idist.get_world_size()}")


with idist.Parallel(backend="gloo") as parallel:
    parallel.run(train)

"""Accelerate's loop, as in its quick tour."""

import torch
from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
inputs = torch.randn(512, 64)
data = torch.utils.data.TensorDataset(inputs, (inputs.sum(1) > 0).long())
model = torch.nn.Linear(64, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = torch.utils.data.DataLoader(data, batch_size=64, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for batch, labels in loader:
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(batch), labels)
    accelerator.backward(loss)
    optimizer.step()
rank, ranks = accelerator.process_index, accelerator.num_processes
print(f"accelerate: rank {rank} of {ranks}, loss {loss.item():.3f}")

"""Batches of a bounded number of rows."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
lengths = [50] * 60 + [24_000] + [50] * 10
for step, length in enumerate(lengths):
    optimizer.zero_grad()
    for part in torch.randn(16, length, 64).split(1_000, dim=1):
        model(part).mean().backward()
    optimizer.step()
print("steps", step)

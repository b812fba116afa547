"""Rows of different lengths; the longest batch comes late."""

import time

import torch

model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
lengths = [50] * 60 + [24_000] + [50] * 10
for step, length in enumerate(lengths):
    optimizer.zero_grad()
    model(torch.randn(16, length, 64)).mean().backward()
    optimizer.step()
    time.sleep(0.03)
print("steps", step)

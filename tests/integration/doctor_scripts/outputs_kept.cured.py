"""Evaluation keeps the sum."""

import torch

model = torch.nn.Linear(64, 20_000)
model.eval()
total = count = 0
with torch.no_grad():
    for step in range(200):
        found = model(torch.randn(64, 64)).argmax(-1)
        total, count = total + int(found.sum()), count + len(found)
print("accuracy", total / count)

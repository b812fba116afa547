"""Validation that records gradients."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(200, 800), torch.nn.ReLU(), torch.nn.Linear(800, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(20):
    optimizer.zero_grad()
    (model(torch.randn(100, 200)) ** 2).mean().backward()
    optimizer.step()
model.eval()
total = 0.0
for step in range(100):
    outputs = model(torch.randn(2_000, 200))
    total = total + (outputs**2).mean()
print("validation", float(total))

"""A log that keeps a number of every step."""

import torch

model = torch.nn.Linear(100, 100)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
history = []
for step in range(200):
    optimizer.zero_grad()
    inputs = torch.randn(5_000, 100)
    loss = (model(inputs) ** 2).mean()
    loss.backward()
    optimizer.step()
    history.append(float(inputs.mean()))
print("steps", len(history))

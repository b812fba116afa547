"""SGD has no state."""

import torch

model = torch.nn.Linear(6_000, 6_000)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(2, 6_000)).mean().backward()
    optimizer.step()
print("done")

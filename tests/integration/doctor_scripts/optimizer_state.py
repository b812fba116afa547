"""Adam's state does not fit beside weights and gradients."""

import torch

model = torch.nn.Linear(6_000, 6_000)
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(2, 6_000)).mean().backward()
    optimizer.step()
print("done")

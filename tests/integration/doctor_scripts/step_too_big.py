"""One step whose activations do not fit."""

import torch

model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU()) for _ in range(20)])
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(3):
    optimizer.zero_grad()
    loss = (model(torch.randn(16_384, 512)) ** 2).mean()
    loss.backward()
    optimizer.step()
print("loss", float(loss))

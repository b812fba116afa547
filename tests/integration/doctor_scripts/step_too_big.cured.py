"""The same step in micro-batches."""

import torch

model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU()) for _ in range(20)])
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(3):
    optimizer.zero_grad()
    for _ in range(16):
        loss = (model(torch.randn(1_024, 512)) ** 2).mean() / 16
        loss.backward()
    optimizer.step()
print("loss", float(loss))

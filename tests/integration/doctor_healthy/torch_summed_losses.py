"""Several losses are added and differentiated together: that is not a leak."""

import torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(50):
    total = torch.zeros(())
    for scale in (1.0, 0.5):
        loss = (model(torch.randn(32, 8)) ** 2).mean() * scale
        total += loss
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
print("loss", float(total))

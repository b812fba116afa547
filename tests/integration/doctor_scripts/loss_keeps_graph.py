"""A list of losses that keep their graphs."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(200, 500), torch.nn.ReLU(), torch.nn.Linear(500, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
losses = []
for step in range(300):
    inputs = torch.randn(2_000, 200)
    loss = (model(inputs) ** 2).mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    losses.append(loss)  # should be a number
print("mean", float(sum(losses) / len(losses)))

"""A checkpoint that is made in memory."""

import io

import torch

model = torch.nn.Linear(6_000, 6_000)
model.weight.requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for step in range(3):
    model(torch.randn(2, 6_000)).mean().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
buffer = io.BytesIO()
torch.save(model.state_dict(), buffer)
with open("model.pt", "wb") as file:
    file.write(buffer.getvalue())
print("saved")

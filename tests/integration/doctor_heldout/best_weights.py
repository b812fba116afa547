"""The best weights are kept by a deep copy and written with pickle."""

import copy
import pickle

import torch

model = torch.nn.Sequential(*[torch.nn.Linear(3_000, 3_000) for _ in range(3)])
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
best = None
for step in range(6):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 3_000)).square().mean()
    loss.backward()
    optimizer.step()
optimizer.zero_grad(set_to_none=True)
best = copy.deepcopy(model.state_dict())
with open("best.pkl", "wb") as file:
    file.write(pickle.dumps({"weights": {k: v.numpy() for k, v in best.items()}, "step": step}))
print("saved")

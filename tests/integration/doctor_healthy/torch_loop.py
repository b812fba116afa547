"""A plain torch loop with a loader, validation and a checkpoint."""

import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(2_000, 16), torch.randn(2_000, 1))
model = torch.nn.Linear(16, 1)
optimizer = torch.optim.Adam(model.parameters())
for epoch in range(2):
    model.train()
    total = 0.0
    for x, y in DataLoader(data, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
    model.eval()
    correct = 0
    with torch.no_grad():
        for x, y in DataLoader(data, batch_size=64):
            correct += int((model(x).sign() == y.sign()).sum())
    print("epoch", epoch, total, correct)
torch.save(model.state_dict(), "model.pt")

"""Validation averages the losses of all batches with their graphs; only training calls backward."""

import torch

model = torch.nn.Sequential(torch.nn.Linear(200, 4_000), torch.nn.GELU(), torch.nn.Linear(4_000, 10))
optimizer = torch.optim.Adam(model.parameters())


def validate(batches):
    model.eval()
    losses = [torch.nn.functional.cross_entropy(model(x), y) for x, y in batches]
    model.train()
    return torch.stack(losses).mean().item()


def batches(count):
    return [(torch.randn(256, 200), torch.randint(0, 10, (256,))) for _ in range(count)]


for epoch in range(2):
    for x, y in batches(30):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    print("epoch", epoch, validate(batches(120)))

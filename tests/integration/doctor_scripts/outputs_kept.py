"""Evaluation keeps all logits."""

import torch

model = torch.nn.Linear(64, 20_000)
model.eval()
all_logits = []
with torch.no_grad():
    for step in range(200):
        logits = model(torch.randn(64, 64))
        all_logits.append(logits)
print("accuracy", float(torch.cat(all_logits).argmax(-1).float().mean()))
